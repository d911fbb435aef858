#pragma once

#include <ATen/core/Tensor.h>

/// Divergences between distributions over few classes, with their gradients in closed form.
namespace sftrun::layers {

struct ClassDivergence {
  at::Tensor value;  ///< [n] fp64
  /// [n, classes] fp64: gradient of each row's value by the student's log-probabilities, but for a
  /// multiple of the student's probabilities, which has no effect on logits.
  at::Tensor grad;
};

/// @param teacher, student [n, classes] fp64 log-probabilities, finite   @param beta as of Distillation
ClassDivergence class_divergence(const at::Tensor& teacher, const at::Tensor& student, double beta);

}  // namespace sftrun::layers
