#pragma once

#include <ATen/core/Tensor.h>

/// Distillation (arXiv:1503.02531): the loss of a row is
///     alpha * D(teacher, student) + (1 - alpha) * cross-entropy of the label.
/// Of the teacher, the log-probabilities of k tokens are known, and that of all others together. So D
/// is over k + 1 classes, of which the last is the rest of the vocabulary; with k = vocabulary it is
/// the divergence of the whole distributions.
namespace sftrun::layers {

struct Distillation {
  double alpha = 0.5;  ///< share of the divergence
  /// Generalised Jensen-Shannon divergence (arXiv:2306.13649) in the convention of TRL's GKDTrainer:
  ///     0: KL(teacher || student), 1: KL(student || teacher), between, with
  ///     M = beta * teacher + (1 - beta) * student:
  ///     beta * KL(teacher || M) + (1 - beta) * KL(student || M)
  double beta = 0;
  /// Divides the logits of the divergence, not those of the cross-entropy. As in GKDTrainer, the
  /// divergence is not multiplied by its square.
  double temperature = 1;
};

/// What a teacher says of N rows.
struct TeacherTargets {
  at::Tensor tokens;  ///< [N, k] int32, different ones in a row
  /// [N, k + 1] fp32: log-probabilities of `tokens` at the temperature, then that of all other tokens
  /// together; -inf: none.
  at::Tensor log_probs;
  Distillation mix;
};

}  // namespace sftrun::layers
