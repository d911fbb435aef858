#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sftrun/layers/parameter.h"
#include "sftrun/parallel/group.h"
#include "sftrun/parallel/mesh_groups.h"

namespace sftrun::parallel {

/// The axis `tp`: the ranks of a group have different parts of each matrix and compute the same
/// tokens; the layers exchange what they need (`layers::TensorRanks`).
///
/// Parameters are either divided, or equal on all ranks of a group. Of the latter some have complete
/// gradients on every rank; of the others each rank has a summand (`has_partial_gradient`). Of a
/// divided one some rows may be equal on neighbouring ranks (`IndexRange::copies`): heads of keys and
/// values, of whose gradient each of these ranks has the summand of its own queries.
class TensorParts {
 public:
  TensorParts(MeshGroups& groups, const layers::ParameterStore& parameters);
  /// Sums those of the gradients that are summands, in one message for each number of ranks that
  /// share values.
  /// @param pieces whose gradients lie in the flat buffer `grad`
  void sum_gradients(const std::vector<layers::OwnedValues::Piece>& pieces, const at::Tensor& grad);
  /// The same for the whole gradients of a unit.
  void sum_gradients_of_unit(const layers::ParameterStore& parameters, int64_t unit);
  /// The values of `flat` that this rank counts, so that the group counts each one once: those that
  /// several ranks have are counted by the first one.   @return [n]; `flat` itself if it counts all
  at::Tensor counted(const layers::OwnedValues& owned, const at::Tensor& flat) const;
  /// See `Strategy::joined`.
  at::Tensor joined(const layers::Parameter& parameter, const at::Tensor& part);

 private:
  std::vector<IndexRange> summands_of(const layers::Parameter& parameter, int64_t num_ranks) const;
  Group parts_;
  std::map<int64_t, Group> sharers_;  // ranks with equal values, by their number
};

}  // namespace sftrun::parallel
