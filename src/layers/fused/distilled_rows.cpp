#include "fused/distilled_rows.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <limits>

#include "fused/class_divergence.h"

namespace sftrun::layers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Stands for log 0: finite, as 0 * -inf is not a number, and exp of it is 0 in fp64.
constexpr double kLogOfZero = -1e4;

/// Where tokens are among this rank's columns.
struct OwnColumns {
  at::Tensor column;   ///< [n, c] int64; another column if the token is not here
  at::Tensor is_here;  ///< [n, c] bool
};

OwnColumns own_columns(const at::Tensor& tokens, const Head& head, int64_t width) {
  const at::Tensor column = tokens.to(at::kLong) - head.first_token;
  return {column.clamp(0, width - 1), column.ge(0).logical_and_(column.lt(width))};
}

/// Values of tokens [n, c] fp32, wherever they are.
at::Tensor values_of(const at::Tensor& logits, const OwnColumns& at_tokens, const Head& head) {
  at::Tensor values = logits.gather(1, at_tokens.column).masked_fill_(~at_tokens.is_here, 0);
  if (head.linear.ranks != nullptr) head.linear.ranks->sum(values);  // of one value and zeros
  return values;
}

/// Adds to single logits.   @param values [n, c]
void add_at(at::Tensor& logits, const OwnColumns& at_tokens, const at::Tensor& values) {
  const at::Tensor& columns = at_tokens.column;
  const at::Tensor added = values.to(logits.scalar_type()).masked_fill(~at_tokens.is_here, 0);
  if (!at::globalContext().deterministicAlgorithms()) {
    logits.scatter_add_(1, columns, added);
    return;
  }
  const at::Tensor rows = at::arange(columns.size(0), columns.options()).unsqueeze(1);
  logits.index_put_({rows.expand_as(columns), columns}, added, /*accumulate=*/true);
}

/// The student's distribution over the k tokens of the teacher and the rest.
struct StudentClasses {
  OwnColumns columns;  ///< of the k tokens
  at::Tensor rest;     ///< [n, own vocabulary] fp32: logits of other tokens, -inf at the k tokens
  at::Tensor
      rest_sum;  ///< [n] fp32: log-sum-exp of `rest` over all ranks; 0 where there is no rest
  at::Tensor log_probs;  ///< [n, k + 1] fp64, finite
  at::Tensor log_total;  ///< [n, 1] fp64: log-sum-exp of all logits
};

/// @param logits [n, own vocabulary] fp32: becomes `rest`
StudentClasses student_classes_(at::Tensor logits, const at::Tensor& tokens, const Head& head) {
  StudentClasses student{.columns = own_columns(tokens, head, logits.size(1)), .rest = {}};
  const at::Tensor of_tokens = values_of(logits, student.columns, head);
  // amin: a token of another rank leaves its stand-in column as it is.
  const at::Tensor limits = at::where(student.columns.is_here, -kInfinity, kInfinity);
  logits.scatter_reduce_(1, student.columns.column, limits.to(logits.scalar_type()), "amin");
  student.rest = std::move(logits);
  const at::Tensor rest_sum = log_sum_of_all_ranks(student.rest, head);
  const at::Tensor values = at::cat({of_tokens, rest_sum.unsqueeze(1)}, 1).to(at::kDouble);
  student.log_total = values.logsumexp(1, /*keepdim=*/true);
  student.log_probs = (values - student.log_total).clamp_min_(kLogOfZero);
  student.rest_sum = rest_sum.masked_fill(rest_sum.isneginf(), 0);
  return student;
}

/// [n, 1] fp64: what multiplies each row's gradient; 0 for padding.
at::Tensor row_scale(const kernels::GradScale& scale, const at::Tensor& is_padding) {
  at::Tensor factors =
      at::full({is_padding.size(0), 1}, scale.value, is_padding.options().dtype(at::kDouble));
  if (scale.factor.defined()) factors.mul_(scale.factor);
  if (scale.row_factors.defined()) factors.mul_(scale.row_factors.unsqueeze(1));
  return factors.masked_fill_(is_padding.unsqueeze(1), 0);
}

/// Logits in fp32 after the soft cap; may be the given tensor.
at::Tensor capped_logits(const at::Tensor& logits, double softcap) {
  const at::Tensor values = logits.to(at::kFloat);
  return softcap > 0 ? (values / softcap).tanh_().mul_(softcap) : values;
}

}  // namespace

at::Tensor log_sum_of_all_ranks(const at::Tensor& logits, const Head& head) {
  const at::Tensor own = logits.logsumexp(1);
  return head.linear.ranks == nullptr ? own : head.linear.ranks->gather(own).logsumexp(0);
}

// For token i with the student's probability p_i at temperature T, G the sum of the classes' gradients
// g and P the rest's probability:
//     i among the k tokens: dz_i = (g_i - G p_i) / T
//     else:                 dz_i = (g_rest - G P) (p_i / P) / T
// p_i / P is computed from the rest's own log-sum-exp, so that it is exact where P is almost 0. The
// cross-entropy has G = -1, with p_i - 1 at the label.
DistilledRows distilled_rows_(at::Tensor& logits, const Head& head, const at::Tensor& labels,
                              const TeacherTargets& targets,
                              const std::optional<kernels::GradScale>& scale) {
  const auto [alpha, beta, temperature] = targets.mix;
  const bool is_tempered = temperature != 1;
  const at::Tensor values = capped_logits(logits, head.softcap);
  const OwnColumns label = own_columns(labels.unsqueeze(1), head, values.size(1));
  const at::Tensor label_value = values_of(values, label, head).to(at::kDouble);
  const at::Tensor is_padding = labels.lt(0);
  const at::Tensor cap_slopes =
      head.softcap > 0 && scale ? 1 - (values / head.softcap).square_() : at::Tensor();
  const at::Tensor log_sum = is_tempered ? log_sum_of_all_ranks(values, head) : at::Tensor();
  StudentClasses student =
      student_classes_(is_tempered ? values / temperature : values, targets.tokens, head);
  const at::Tensor log_total =
      is_tempered ? log_sum.unsqueeze(1).to(at::kDouble) : student.log_total;
  const ClassDivergence divergence = class_divergence(
      targets.log_probs.to(at::kDouble).clamp_min_(kLogOfZero), student.log_probs, beta);
  DistilledRows rows{
      .divergence = divergence.value.masked_fill(is_padding, 0),
      .cross_entropy = (log_total - label_value).squeeze(1).masked_fill(is_padding, 0)};
  if (!scale) return rows;
  const at::Tensor factors = row_scale(*scale, is_padding), probs = student.log_probs.exp();
  at::Tensor of_classes = (divergence.grad - divergence.grad.sum(1, /*keepdim=*/true) * probs)
                              .mul_(alpha / temperature);
  if (!is_tempered) of_classes.add_(probs, 1 - alpha);
  of_classes.mul_(factors);
  const int64_t k = targets.tokens.size(1);
  at::Tensor grad = student.rest.sub_(student.rest_sum.unsqueeze(1)).exp_();
  grad.mul_(of_classes.narrow(1, k, 1).to(at::kFloat));
  add_at(grad, student.columns, of_classes.narrow(1, 0, k));
  const at::Tensor of_label = factors * (1 - alpha);
  if (is_tempered) grad.addcmul_((values - log_sum.unsqueeze(1)).exp_(), of_label.to(at::kFloat));
  add_at(grad, label, -of_label);
  if (cap_slopes.defined()) grad.mul_(cap_slopes);
  logits.copy_(grad);  // may be the same memory
  return rows;
}

}  // namespace sftrun::layers
