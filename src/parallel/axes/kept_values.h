#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/parallel/strategy.h"

namespace sftrun::parallel {

/// The trained values that a rank keeps with ZeRO: its part of each unit as fp32 masters, gradients
/// and copies in the compute dtype. The optimizer updates these; none is ever gathered for it.
class KeptValues {
 public:
  /// Takes the masters from `shards`.
  /// @param gathers_masters forward and backward passes read the fp32 masters of all parameters
  KeptValues(bool gathers_masters, const DistributedModel& model, UnitShards& shards);

  struct OfUnit {
    layers::FlatValues
        values;  ///< views of `owned().flat`, unless borrowed; undefined: none trains
    bool reads_masters = false;  ///< passes read its fp32 masters, so they are gathered
    /// Copies of `values` as they were at the start, of what is gathered; undefined: not kept.
    at::Tensor start_master, start_compute;
    /// What is gathered of a unit that trains.
    const at::Tensor& master(bool of_start) const {
      return of_start ? start_master : values.master;
    }
    const at::Tensor& compute(bool of_start) const {
      return of_start ? start_compute : values.compute;
    }
  };
  const OfUnit& unit(int64_t unit) const { return units_[static_cast<size_t>(unit)]; }
  const std::vector<OfUnit>& units() const { return units_; }
  const layers::OwnedValues& owned() const { return owned_; }
  bool are_on_host() const { return is_on_host_; }
  void keep_start();
  bool keeps_start() const { return keeps_start_; }

 private:
  layers::FlatValues allocated(int64_t numel) const;

  at::Tensor copy_of(const at::Tensor& kept) const;

  bool gathers_masters_, is_on_host_, keeps_start_ = false;
  DistributedModel model_;
  layers::OwnedValues owned_;
  std::vector<OfUnit> units_;
};

}  // namespace sftrun::parallel
