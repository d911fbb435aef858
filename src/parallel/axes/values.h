#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "sftrun/parallel/strategy.h"

namespace sftrun::parallel {

/// Where the values of the units lie along the axes of data parallelism, and how their gradients are
/// summed over these axes.
class Values : public layers::UnitHooks {
 public:
  virtual const layers::OwnedValues& owned() const = 0;
  virtual void begin_step() = 0;
  /// Completes the sums over the data-parallel ranks.
  virtual void finish_step() = 0;
  virtual StoredBytes stored_bytes() const = 0;
  /// As of `Strategy`.
  virtual void keep_start(bool reads_masters) = 0;
  virtual bool communicates_in_passes() const = 0;
  /// What this rank keeps of a unit's trained values, as views.   @pre the unit trains
  virtual layers::FlatValues kept_of(int64_t unit) = 0;

  /// Called before a unit's trained values are read, also when they are gathered ahead.
  void set_before_reading(std::function<void(int64_t unit)> call) {
    before_reading_ = std::move(call);
  }
  /// Called when the gradients of a unit, whole on this rank, are about to be summed.
  void set_before_summing(std::function<void(int64_t unit)> call) {
    before_summing_ = std::move(call);
  }

 protected:
  void tell_reading(int64_t unit) const {
    if (before_reading_) before_reading_(unit);
  }
  void tell_summing(int64_t unit) const {
    if (before_summing_) before_summing_(unit);
  }

 private:
  std::function<void(int64_t)> before_reading_, before_summing_;
};

}  // namespace sftrun::parallel
