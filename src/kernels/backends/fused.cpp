#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "fused_linears.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/backend.h"

namespace sftrun::kernels {
namespace {

/// The normed input that a group's parameter gradients read: computed again, not kept.
at::Tensor normed_again(const at::Tensor& x, const Norm& norm, const LinearGroup& group) {
  return trains(group) ? rms_norm_forward(x, norm.weight, norm.eps).first : at::Tensor();
}

/// Backward of norm(x) beside a residual path: returns residual_grad + the norm's gradient.
at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& x, const Norm& norm,
                         const at::Tensor& rstd, const at::Tensor& residual_grad, bool needs_dx) {
  if (norm.parameter) norm.parameter->grad.add_(rms_norm_weight_grad(dy, x, rstd));
  if (!needs_dx) return {};
  return rms_norm_backward(dy, x, norm.weight, rstd, residual_grad);
}

struct AttentionHalf {
  at::Tensor x, rstd, q, k, v;
  AttentionOutput attention;
  LowRank qkv_low, o_low;
};

struct FeedForwardHalf {
  at::Tensor x, rstd, gate, up;
  LowRank gate_up_low, down_low;
};

/// The passes of one layer, each writing what its backward needs to a half when it is not null.
class Passes {
 public:
  Passes(const Layer& layer, const BatchContext& batch) : l_(layer), batch_(batch) {}

  AttentionInputs project(const at::Tensor& x, const AttentionShape& shape, AttentionHalf* keep) {
    auto [normed, rstd] = rms_norm_forward(x, l_.input_norm.weight, l_.input_norm.eps);
    auto qkv = linears_forward(normed, qkv_group(), batch_, keep ? &keep->qkv_low : nullptr);
    rope_(qkv[0], batch_, shape.head_dim, 1);
    rope_(qkv[1], batch_, shape.head_dim, 1);
    if (keep) keep->rstd = rstd;
    return {qkv[0], qkv[1], qkv[2]};
  }

  at::Tensor add_attended(const at::Tensor& x, const at::Tensor& attended, AttentionHalf* keep) {
    return linears_forward(attended, {&l_.o}, batch_, keep ? &keep->o_low : nullptr, x)[0];
  }

  at::Tensor attention_half(const at::Tensor& x, const AttentionShape& shape, AttentionHalf* keep) {
    AttentionInputs in = project(x, shape, keep);
    AttentionOutput attention = attention_forward(in.q, in.k, in.v, batch_, shape);
    at::Tensor y = add_attended(x, attention.out, keep);
    if (keep) {
      keep->x = x;
      keep->q = std::move(in.q), keep->k = std::move(in.k), keep->v = std::move(in.v);
      keep->attention = std::move(attention);
    }
    return y;
  }

  at::Tensor feed_forward_half(const at::Tensor& x, FeedForwardHalf* keep) {
    const Norm& norm = l_.post_attention_norm;
    auto [normed, rstd] = rms_norm_forward(x, norm.weight, norm.eps);
    auto gate_up =
        linears_forward(normed, gate_up_group(), batch_, keep ? &keep->gate_up_low : nullptr);
    normed.reset();
    const at::Tensor h = swiglu_forward(gate_up[0], gate_up[1]);
    at::Tensor y = linears_forward(h, {&l_.down}, batch_, keep ? &keep->down_low : nullptr, x)[0];
    if (keep) {
      keep->x = x, keep->rstd = rstd;
      keep->gate = std::move(gate_up[0]), keep->up = std::move(gate_up[1]);
    }
    return y;
  }

  at::Tensor feed_forward_backward(FeedForwardHalf half, const at::Tensor& grad, bool needs_dx) {
    const Norm& norm = l_.post_attention_norm;
    const LinearGroup down = {&l_.down};
    const bool through_norm = needs_dx || norm.parameter != nullptr,
               through_down = through_norm || trains(gate_up_group());
    at::Tensor h = trains(down) ? swiglu_forward(half.gate, half.up) : at::Tensor();
    at::Tensor dh = linears_backward({grad}, h, half.down_low, down, batch_, through_down);
    h.reset();
    if (!through_down) return {};
    swiglu_backward_(dh, half.gate, half.up);  // they become their own gradients
    dh.reset();
    const at::Tensor d_normed =
        linears_backward({half.gate, half.up}, normed_again(half.x, norm, gate_up_group()),
                         half.gate_up_low, gate_up_group(), batch_, through_norm);
    half.gate.reset();
    half.up.reset();
    if (!through_norm) return {};
    return norm_backward(d_normed, half.x, norm, half.rstd, grad, needs_dx);
  }

  at::Tensor attention_half_backward(AttentionHalf half, const at::Tensor& grad,
                                     const AttentionShape& shape, bool needs_dx) {
    const Norm& norm = l_.input_norm;
    const bool through_norm = needs_dx || norm.parameter != nullptr,
               through_attention = through_norm || trains(qkv_group());
    const at::Tensor d_attended = linears_backward({grad}, half.attention.out, half.o_low, {&l_.o},
                                                   batch_, through_attention);
    if (!through_attention) return {};
    AttentionGrads d =
        attention_backward(d_attended, half.q, half.k, half.v, half.attention, batch_, shape);
    rope_(d.dq, batch_, shape.head_dim, -1);
    rope_(d.dk, batch_, shape.head_dim, -1);
    const at::Tensor d_normed =
        linears_backward({d.dq, d.dk, d.dv}, normed_again(half.x, norm, qkv_group()), half.qkv_low,
                         qkv_group(), batch_, through_norm);
    if (!through_norm) return {};
    return norm_backward(d_normed, half.x, norm, half.rstd, grad, needs_dx);
  }

  /// Whether anything before the feed-forward half needs its gradient.
  bool attention_half_trains() const {
    return l_.input_norm.parameter != nullptr || trains(qkv_group()) || l_.o.trains();
  }

 private:
  LinearGroup qkv_group() const { return {&l_.q, &l_.k, &l_.v}; }
  LinearGroup gate_up_group() const { return {&l_.gate, &l_.up}; }

  const Layer& l_;
  const BatchContext& batch_;
};

class FusedRun final : public LayerRun {
 public:
  FusedRun(const Layer& layer, const BatchContext& batch, const AttentionShape& shape)
      : passes_(layer, batch), shape_(shape) {}

  at::Tensor forward(const at::Tensor& x) {
    return passes_.feed_forward_half(passes_.attention_half(x, shape_, &attention_),
                                     &feed_forward_);
  }

  at::Tensor backward(const at::Tensor& grad, bool needs_input_grad) override {
    const at::NoGradGuard no_grad;
    const bool needs_middle = needs_input_grad || passes_.attention_half_trains();
    const at::Tensor middle =
        passes_.feed_forward_backward(std::move(feed_forward_), grad.contiguous(), needs_middle);
    if (!needs_middle) return {};
    return passes_.attention_half_backward(std::move(attention_), middle, shape_, needs_input_grad);
  }

 private:
  Passes passes_;
  AttentionShape shape_;
  AttentionHalf attention_;
  FeedForwardHalf feed_forward_;
};

at::Tensor layer_forward(const Layer& layer, const at::Tensor& x, const BatchContext& batch,
                         const AttentionShape& shape, std::unique_ptr<LayerRun>* run) {
  const at::NoGradGuard no_grad;
  if (run == nullptr) {
    Passes passes(layer, batch);
    return passes.feed_forward_half(passes.attention_half(x, shape, nullptr), nullptr);
  }
  auto kept = std::make_unique<FusedRun>(layer, batch, shape);
  at::Tensor y = kept->forward(x);
  *run = std::move(kept);
  return y;
}

// A chunk's logits: few enough to stay near the cache and out of the way of the layers' kept
// tensors, enough rows that reading the head's weight costs little beside the products.
int64_t chunk_rows(const at::Tensor& hidden, int64_t vocab) {
  constexpr int64_t kChunkElements = 16 << 20, kRowBlock = 64;
  if (hidden.is_cuda()) return std::max<int64_t>(1024, (256 << 20) / vocab);
  return std::max(kRowBlock, kChunkElements / vocab / kRowBlock * kRowBlock);
}

double sum_in_fp64(const at::Tensor& losses) {
  return losses.sum(at::kDouble).item<double>();
}

HeadLoss head_loss(const at::Tensor& input, const Norm& norm, const Linear& head,
                   const at::Tensor& labels, double grad_scale, HeadGrad wanted) {
  const at::NoGradGuard no_grad;
  const int64_t num_rows = input.size(0), step = chunk_rows(input, head.weight.size(0));
  auto [normed, rstd] = rms_norm_forward(input, norm.weight, norm.eps);
  const bool needs_d_normed = wanted == HeadGrad::kInput || norm.parameter != nullptr;
  at::Tensor d_normed =
      wanted != HeadGrad::kNone && needs_d_normed ? at::empty_like(input) : at::Tensor();
  HeadLoss result;
  for (int64_t first = 0; first < num_rows; first += step) {
    const int64_t rows = std::min(step, num_rows - first);
    const at::Tensor chunk = normed.narrow(0, first, rows),
                     chunk_labels = labels.narrow(0, first, rows);
    at::Tensor logits = matmul_nt(chunk, head.weight);
    if (wanted == HeadGrad::kNone) {
      result.loss_sum += sum_in_fp64(token_losses(logits, chunk_labels));
      continue;
    }
    result.loss_sum += sum_in_fp64(token_losses_and_grad_(logits, chunk_labels, grad_scale));
    if (d_normed.defined())
      d_normed.narrow(0, first, rows).copy_(matmul_sum({{logits, head.weight, false}}));
    if (head.weight_parameter) add_matmul_tn_(head.weight_parameter->grad, logits, chunk);
  }
  if (d_normed.defined())
    result.grad_input = norm_backward(d_normed, input, norm, rstd, {}, wanted == HeadGrad::kInput);
  return result;
}

}  // namespace

AttentionInputs attention_inputs(const Layer& layer, const at::Tensor& x, const BatchContext& batch,
                                 const AttentionShape& shape) {
  return Passes(layer, batch).project(x, shape, nullptr);
}

at::Tensor after_attention(const Layer& layer, const at::Tensor& x, const at::Tensor& attended,
                           const BatchContext& batch) {
  Passes passes(layer, batch);
  return passes.feed_forward_half(passes.add_attended(x, attended, nullptr), nullptr);
}

const Backend& fused_backend() {
  static const Backend backend{"fused", layer_forward, head_loss};
  return backend;
}

}  // namespace sftrun::kernels
