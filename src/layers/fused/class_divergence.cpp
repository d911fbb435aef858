#include "fused/class_divergence.h"

#include <ATen/ATen.h>

#include <cmath>

namespace sftrun::layers {
namespace {

/// Sum over classes of exp(of) * (of - from).
at::Tensor kl(const at::Tensor& of, const at::Tensor& from) {
  return (of.exp() * (of - from)).sum(1);
}

}  // namespace

// With s the student's log-probabilities and p = exp(s), s_i moves with the logits by
// ds_i = dz_i - sum p_j dz_j, so that adding c * p to a gradient changes nothing: the terms c * p of the
// derivatives are left out.
ClassDivergence class_divergence(const at::Tensor& teacher, const at::Tensor& student,
                                 double beta) {
  if (beta == 0) return {kl(teacher, student), -teacher.exp()};
  if (beta == 1) return {kl(student, teacher), student.exp() * (student - teacher)};
  const at::Tensor mixture = at::logaddexp(student + std::log1p(-beta), teacher + std::log(beta));
  return {beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture),
          (1 - beta) * student.exp() * (student - mixture)};
}

}  // namespace sftrun::layers
