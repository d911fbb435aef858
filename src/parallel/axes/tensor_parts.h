#pragma once

#include <vector>

#include "sftrun/layers/parameter.h"
#include "sftrun/parallel/group.h"

namespace sftrun::parallel {

/// The axis `tp`: the ranks of a group have different parts of each matrix and compute the same
/// tokens; the layers exchange what they need (`layers::TensorRanks`).
///
/// Parameters are either divided, or equal on all ranks of a group. Of the latter some have complete
/// gradients on every rank; of the others each rank has a summand (`has_partial_gradient`).
class TensorParts {
 public:
  explicit TensorParts(Group parts) : parts_(std::move(parts)) {}
  /// Sums those of `grads` that are summands, in one message.
  /// @param pieces whose gradients lie in the flat buffer `grad`
  void sum_gradients(const std::vector<layers::OwnedValues::Piece>& pieces, const at::Tensor& grad);
  /// The same for the whole gradients of a unit.
  void sum_gradients_of_unit(const layers::ParameterStore& parameters, int64_t unit);
  /// The values of `flat` that this rank counts, so that the group counts each one once: those that
  /// all parts have are counted by the first one.   @return [n]; `flat` itself if it counts all
  at::Tensor counted(const layers::OwnedValues& owned, const at::Tensor& flat) const;
  /// See `Strategy::joined`.
  at::Tensor joined(const layers::Parameter& parameter, const at::Tensor& part);

 private:
  void sum(const std::vector<at::Tensor>& summands);
  Group parts_;
};

}  // namespace sftrun::parallel
