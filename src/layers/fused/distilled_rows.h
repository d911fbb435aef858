#pragma once

#include <optional>

#include "sftrun/kernels/ops.h"
#include "sftrun/layers/backend.h"

/// The loss of distillation on a chunk of logits. ATen operations, without host synchronisation. With
/// tensor parallelism each rank has the logits of its tokens, and all call the same functions.
namespace sftrun::layers {

struct DistilledRows {
  /// [n] fp64, before their shares and factors; 0 for rows of padding, whose label is negative
  at::Tensor divergence, cross_entropy;
};

/// @param logits [n, own vocabulary] after scaling, before the soft cap: scratch
/// @param labels [n] int32   @param targets of these rows
/// @param scale overwrites the logits with the gradient of scale * sum of (row_factor * loss);
/// nullopt: without gradients
DistilledRows distilled_rows_(at::Tensor& logits, const Head& head, const at::Tensor& labels,
                              const TeacherTargets& targets,
                              const std::optional<kernels::GradScale>& scale);

/// Sum of exp over the vocabulary's columns of all ranks, as a logarithm: [n] fp32.
at::Tensor log_sum_of_all_ranks(const at::Tensor& logits, const Head& head);

}  // namespace sftrun::layers
