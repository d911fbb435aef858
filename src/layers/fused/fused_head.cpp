#include "fused/fused_head.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "fused/distilled_rows.h"
#include "linear/fused_linears.h"
#include "linear/fused_norms.h"
#include "pooled_rows.h"
#include "sftrun/core/error.h"
#include "sftrun/layers/dora.h"

namespace sftrun::layers {
namespace {

// Rows per chunk: few enough for the logits to stay near the cache and to need little memory,
// enough to make reading the head's weight cheap.
int64_t chunk_rows(const at::Tensor& hidden, int64_t vocab) {
  constexpr int64_t kChunkElements = 32 << 20, kRowBlock = 64;
  if (hidden.is_cuda()) return std::max<int64_t>(1024, (256 << 20) / vocab);
  return std::max(kRowBlock, kChunkElements / vocab / kRowBlock * kRowBlock);
}

/// Beside a chunk of logits in the compute dtype, the loss of distillation has some in fp32.
constexpr int64_t kDistillationDivisor = 4;

at::Tensor zero_in_fp64(const at::Tensor& like) {
  return at::zeros({}, like.options().dtype(at::kDouble));
}
/// @param factors [n] fp32 of the losses; undefined: 1
void add_sum_in_fp64(at::Tensor& sum, const at::Tensor& losses, const at::Tensor& factors) {
  sum.add_(factors.defined() ? at::dot(losses.to(at::kDouble), factors.to(at::kDouble))
                             : losses.sum(at::kDouble));
}

/// Of one chunk; undefined where there are none.
at::Tensor rows_of(const at::Tensor& factors, int64_t first, int64_t count) {
  return factors.defined() ? factors.narrow(0, first, count) : at::Tensor();
}

TeacherTargets rows_of(const TeacherTargets& targets, int64_t first, int64_t count) {
  return {targets.tokens.narrow(0, first, count), targets.log_probs.narrow(0, first, count),
          targets.mix};
}

/// Logits after scaling, before the soft cap.
at::Tensor raw_logits(const Head& head, const Linear& linear, const at::Tensor& normed_rows,
                      const BatchContext& rows, LowRank* low = nullptr) {
  at::Tensor logits = linears_forward(normed_rows, {&linear}, rows, low)[0];
  return head.logit_scale == 1 ? logits : logits.mul_(head.logit_scale);
}

/// With DoRA's row norms computed once for all chunks.
Linear with_lengths(Linear linear, const BatchContext& rows) {
  const LoraAdapter* lora = active_adapter(linear, rows);
  if (lora != nullptr && lora->magnitude) linear.lora->lengths = row_lengths(linear);
  return linear;
}

/// The softmax of rows whose logits lie on several ranks.
struct DividedRows {
  at::Tensor no_label;  ///< [n] bool: rows of padding, without loss and gradient
  at::Tensor losses;    ///< [n] fp32: -log p of the labels
  at::Tensor log_sum;   ///< [n] fp32: of this rank's exp(logit), less that of all ranks
  at::Tensor label;     ///< [n, 1] int64: the label's column, or another one if it is not here
  at::Tensor is_here;   ///< [n] bool: whether this rank has the label
  at::Tensor value;     ///< [n] fp32: logit of column `label`, after the soft cap
  at::Tensor log_probability;  ///< [n] fp32, of that column
};

at::Tensor capped(const at::Tensor& logits, double softcap) {
  return softcap > 0 ? at::tanh(logits / softcap).mul_(softcap) : logits;
}

DividedRows divided_rows(const at::Tensor& logits, const Head& head, const at::Tensor& labels) {
  const at::Tensor column = labels.to(at::kLong) - head.first_token;
  DividedRows rows;
  rows.is_here = column.ge(0).logical_and_(column.lt(logits.size(1)));
  rows.label = column.clamp(0, logits.size(1) - 1).unsqueeze(1);
  rows.value = capped(logits.gather(1, rows.label).squeeze(1).to(at::kFloat), head.softcap);
  const at::Tensor own =
      kernels::token_losses(logits, rows.label.squeeze(1).to(at::kInt), head.softcap) + rows.value;
  const at::Tensor all =
      head.linear.ranks->gather(at::stack({own, rows.value.masked_fill(~rows.is_here, 0)}));
  const at::Tensor total = at::logsumexp(all.select(1, 0), 0);
  rows.no_label = labels.lt(0);
  rows.losses = (total - all.select(1, 1).sum(0)).masked_fill_(rows.no_label, 0);
  rows.log_sum = own - total;
  rows.log_probability = rows.value - total;
  return rows;
}

/// Overwrites the logits with their gradient.
void divided_rows_backward_(at::Tensor& logits, const DividedRows& rows, const Head& head,
                            const kernels::GradScale& scale) {
  at::Tensor of_row = rows.log_sum.exp().masked_fill_(rows.no_label, 0);
  if (scale.row_factors.defined()) of_row.mul_(scale.row_factors);
  at::Tensor at_label =
      rows.log_probability.exp().sub_(rows.is_here.to(at::kFloat)).mul_(scale.value);
  at_label.masked_fill_(rows.no_label, 0);
  if (scale.row_factors.defined()) at_label.mul_(scale.row_factors);
  if (scale.factor.defined()) at_label.mul_(scale.factor);
  if (head.softcap > 0) at_label.mul_(1 - (rows.value / head.softcap).square());
  // The kernel's softmax is over this rank's logits; `of_row` makes it that of all. At the label the
  // difference of two such numbers would be inexact, so that element is set.
  kernels::token_losses_and_grad_(logits, rows.label.squeeze(1).to(at::kInt), head.softcap,
                                  kernels::GradScale(scale.value, scale.factor, of_row));
  logits.scatter_(1, rows.label, at_label.unsqueeze(1).to(logits.scalar_type()));
}

/// @param own of this rank's tokens [n, tokens]   @return [n, vocab]
at::Tensor logits_of_all_ranks(const at::Tensor& own, const Head& head) {
  at::Tensor all = at::zeros({own.size(0), head.vocab_size}, own.options());
  all.narrow(1, head.first_token, own.size(1)).copy_(own);
  head.linear.ranks->sum(all);  // of one value and zeros, so that each is exact
  return all;
}

/// -log p of the labels [n] fp32.
at::Tensor losses_of(const at::Tensor& logits, const Head& head, const at::Tensor& labels) {
  return head.linear.ranks ? divided_rows(logits, head, labels).losses
                           : kernels::token_losses(logits, labels, head.softcap);
}

/// The same; overwrites the logits with their gradient.
at::Tensor losses_and_grad_(at::Tensor& logits, const Head& head, const at::Tensor& labels,
                            const kernels::GradScale& scale) {
  if (head.linear.ranks == nullptr)
    return kernels::token_losses_and_grad_(logits, labels, head.softcap, scale);
  const DividedRows rows = divided_rows(logits, head, labels);
  divided_rows_backward_(logits, rows, head, scale);
  return rows.losses;
}

/// The loss of a head over chunks of rows, so that the full logits are never stored.
struct HeadPass {
  const at::Tensor& input;
  const Head& head;
  const kernels::GradScale& grad_scale;
  HeadGrad wanted;
  const BatchContext& rows;
  /// Logits in a chunk are fewer by this factor, for losses that need more memory beside them.
  int64_t divisor = 1;

  /// @param of_chunk (logits, first row, number of rows, scale with factors of these rows, whether
  /// gradients are wanted) adds to its sums, and overwrites the logits with their gradient
  /// @return `HeadLoss::grad_input`
  template <class OfChunk>
  at::Tensor run(const OfChunk& of_chunk) const;
};

template <class OfChunk>
at::Tensor HeadPass::run(const OfChunk& of_chunk) const {
  SFTRUN_CHECK(rows.adapters || wanted == HeadGrad::kNone);
  const at::NoGradGuard no_grad;
  const Linear linear = with_lengths(head.linear, rows);
  const int64_t num_rows = input.size(0),
                step = std::max<int64_t>(1, chunk_rows(input, linear.matrix().size(0)) / divisor);
  const Normed in = normed(input, head.norm);
  const bool needs_d_normed = wanted == HeadGrad::kInput || head.norm.parameter != nullptr;
  at::Tensor d_normed =
      wanted != HeadGrad::kNone && needs_d_normed ? at::empty_like(input) : at::Tensor();
  for (int64_t first = 0; first < num_rows; first += step) {
    const int64_t count = std::min(step, num_rows - first);
    const at::Tensor chunk = in.y.narrow(0, first, count);
    const BatchContext keys = dropout_rows(rows, first, count);
    const at::Tensor factors = rows_of(grad_scale.row_factors, first, count);
    LowRank low;
    at::Tensor logits = raw_logits(head, linear, chunk, keys, &low);
    if (wanted == HeadGrad::kNone) {
      of_chunk(logits, first, count, kernels::GradScale(1, {}, factors), false);
      continue;
    }
    const kernels::GradScale scale(grad_scale.value * head.logit_scale, grad_scale.factor, factors);
    of_chunk(logits, first, count, scale, true);
    const at::Tensor d =
        linears_backward({logits}, chunk, low, {&linear}, keys, d_normed.defined());
    if (d.defined()) d_normed.narrow(0, first, count).copy_(d);
  }
  return d_normed.defined()
             ? norm_backward(d_normed, input, head.norm, in.rstd, {}, wanted == HeadGrad::kInput)
             : at::Tensor();
}

}  // namespace

HeadLoss fused_head_loss(const at::Tensor& input, const Head& head, const at::Tensor& labels,
                         const kernels::GradScale& grad_scale, HeadGrad wanted,
                         const BatchContext& rows) {
  HeadLoss result{zero_in_fp64(input), {}, {}, {}};
  result.grad_input = HeadPass{input, head, grad_scale, wanted, rows}.run(
      [&](at::Tensor& logits, int64_t first, int64_t count, const kernels::GradScale& scale,
          bool has_grad) {
        const at::Tensor of_chunk = labels.narrow(0, first, count);
        add_sum_in_fp64(result.loss_sum,
                        has_grad ? losses_and_grad_(logits, head, of_chunk, scale)
                                 : losses_of(logits, head, of_chunk),
                        scale.row_factors);
      });
  return result;
}

HeadLoss fused_distillation_loss(const at::Tensor& input, const Head& head,
                                 const at::Tensor& labels, const TeacherTargets& targets,
                                 const kernels::GradScale& grad_scale, HeadGrad wanted,
                                 const BatchContext& rows) {
  HeadLoss result{zero_in_fp64(input), {}, zero_in_fp64(input), zero_in_fp64(input)};
  result.grad_input = HeadPass{input, head, grad_scale, wanted, rows, kDistillationDivisor}.run(
      [&](at::Tensor& logits, int64_t first, int64_t count, const kernels::GradScale& scale,
          bool has_grad) {
        const DistilledRows losses = distilled_rows_(
            logits, head, labels.narrow(0, first, count), rows_of(targets, first, count),
            has_grad ? std::optional(scale) : std::nullopt);
        add_sum_in_fp64(result.divergence_sum, losses.divergence, scale.row_factors);
        add_sum_in_fp64(result.cross_entropy_sum, losses.cross_entropy, scale.row_factors);
      });
  result.loss_sum = targets.mix.alpha * result.divergence_sum +
                    (1 - targets.mix.alpha) * result.cross_entropy_sum;
  return result;
}

HeadLoss fused_score_loss(const at::Tensor& input, const Head& head, const ScoreLoss& loss,
                          double scale, HeadGrad wanted) {
  const at::NoGradGuard no_grad;
  const Linear& linear = head.linear;
  const Normed in = normed(input, head.norm);
  const at::Tensor rows = in.y.to(at::kFloat);
  const ScoredLoss scored = loss(at::mm(rows, linear.weight.t()));
  HeadLoss result{scored.loss_sum, {}};
  if (wanted == HeadGrad::kNone) return result;
  const at::Tensor d_scores = scored.gradient * scale;
  if (linear.weight_parameter != nullptr)
    linear.weight_parameter->grad.add_(at::mm(d_scores.t(), rows));
  if (wanted == HeadGrad::kInput || head.norm.parameter != nullptr)
    result.grad_input = norm_backward(at::mm(d_scores, linear.weight).to(input.scalar_type()),
                                      input, head.norm, in.rstd, {}, wanted == HeadGrad::kInput);
  return result;
}

HeadLoss fused_embedding_loss(const at::Tensor& input, const Head& head, const PooledRows& rows,
                              const ScoreLoss& loss, double scale, HeadGrad wanted) {
  const at::NoGradGuard no_grad;
  const Normed in = normed(input, head.norm);
  const ScoredLoss scored = loss(pooled(in.y.to(at::kFloat), rows));
  HeadLoss result{scored.loss_sum, {}};
  if (wanted == HeadGrad::kInput ||
      (wanted == HeadGrad::kParameters && head.norm.parameter != nullptr))
    result.grad_input =
        norm_backward(of_pooled_rows(scored.gradient * scale, rows).to(input.scalar_type()), input,
                      head.norm, in.rstd, {}, wanted == HeadGrad::kInput);
  return result;
}

at::Tensor scores_of(const Head& head, const at::Tensor& hidden) {
  const at::NoGradGuard no_grad;
  return at::mm(normed(hidden, head.norm).y.to(at::kFloat), head.linear.weight.t());
}

at::Tensor logits_of(const Head& head, const at::Tensor& hidden) {
  at::Tensor logits = raw_logits(head, head.linear, normed(hidden, head.norm).y, {});
  if (head.linear.ranks != nullptr) logits = logits_of_all_ranks(logits, head);
  return head.softcap > 0 ? logits.div_(head.softcap).tanh_().mul_(head.softcap) : logits;
}

namespace {

/// @param logits [n, vocab] of all ranks, after the soft cap
TeacherTargets top_tokens_of(const at::Tensor& logits, int64_t k, int64_t num_tokens,
                             double temperature) {
  at::Tensor values = logits.to(at::kFloat);
  if (temperature != 1) values = values / temperature;
  const at::Tensor total = values.logsumexp(1, /*keepdim=*/true);
  const auto [top, tokens] = values.narrow(1, 0, num_tokens).topk(k, 1);
  const at::Tensor rest =
      values.scatter(1, tokens, -std::numeric_limits<double>::infinity()).logsumexp(1, true);
  return {tokens.to(at::kInt), at::cat({top, rest}, 1).sub_(total), {.temperature = temperature}};
}

}  // namespace

TeacherTargets top_tokens(const Head& head, const at::Tensor& hidden, int64_t k, int64_t num_tokens,
                          double temperature) {
  const at::NoGradGuard no_grad;
  const int64_t step =
      std::max<int64_t>(1, chunk_rows(hidden, head.linear.matrix().size(0)) / kDistillationDivisor);
  std::vector<at::Tensor> tokens = {at::empty({0, k}, hidden.options().dtype(at::kInt))},
                          log_probs = {at::empty({0, k + 1}, hidden.options().dtype(at::kFloat))};
  for (int64_t first = 0; first < hidden.size(0); first += step) {
    const int64_t count = std::min(step, hidden.size(0) - first);
    const TeacherTargets of_chunk =
        top_tokens_of(logits_of(head, hidden.narrow(0, first, count)), k, num_tokens, temperature);
    tokens.push_back(of_chunk.tokens);
    log_probs.push_back(of_chunk.log_probs);
  }
  return {at::cat(tokens), at::cat(log_probs), {.temperature = temperature}};
}

at::Tensor label_losses(const Head& head, const at::Tensor& hidden, const at::Tensor& labels,
                        const BatchContext& of_rows) {
  const at::NoGradGuard no_grad;
  const Linear linear = with_lengths(head.linear, of_rows);
  const int64_t num_rows = hidden.size(0), step = chunk_rows(hidden, linear.matrix().size(0));
  at::Tensor losses = at::empty({num_rows}, hidden.options().dtype(at::kFloat));
  for (int64_t first = 0; first < num_rows; first += step) {
    const int64_t rows = std::min(step, num_rows - first);
    const at::Tensor chunk = normed(hidden.narrow(0, first, rows), head.norm).y;
    losses.narrow(0, first, rows)
        .copy_(losses_of(raw_logits(head, linear, chunk, dropout_rows(of_rows, first, rows)), head,
                         labels.narrow(0, first, rows)));
  }
  return losses;
}

}  // namespace sftrun::layers
