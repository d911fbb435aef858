#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <utility>

#include "linear/plain_linears.h"
#include "pooled_rows.h"
#include "sftrun/core/error.h"
#include "sftrun/layers/backend.h"

/// Reference numerics with plain operations, line by line: transformers' modeling_llama.py (with
/// the differences of other families) and peft's lora/layer.py.
namespace sftrun::layers {
namespace {

at::Tensor gated(const kernels::Gating& gating, const at::Tensor& gate, const at::Tensor& up) {
  switch (gating.activation) {
    case kernels::Activation::kSilu:
      return at::silu(gate) * up;
    case kernels::Activation::kGeluTanh:
      return at::gelu(gate, "tanh") * up;
    case kernels::Activation::kClampedSwiglu: {  // modeling_gpt_oss.py, _apply_gate
      const at::Tensor g = gate.clamp_max(gating.limit);
      return (up.clamp(-gating.limit, gating.limit) + 1) * (g * at::sigmoid(g * gating.alpha));
    }
  }
  return {};
}

/// Weight of one expert plus its adapter, as in peft's parametrisation.
/// @param dtype of the input   @param adapters false: without the adapter
at::Tensor expert_weight(const ExpertMatrix& matrix, int64_t expert, int64_t num_experts,
                         at::ScalarType dtype, bool adapters) {
  const at::Tensor weight =
      matrix.quantized ? kernels::ExpertStack(*matrix.quantized, num_experts).values(expert, dtype)
                       : value_of(matrix.parameter, matrix.weight).select(0, expert);
  if (!matrix.lora || !adapters) return weight;
  const at::Tensor update = at::matmul(matrix.lora->b->master.select(0, expert),
                                       matrix.lora->a->master.select(0, expert));
  return weight + (update * matrix.lora->scale).to(weight.scalar_type());
}

std::optional<at::Tensor> expert_bias(const ExpertMatrix& matrix, int64_t expert) {
  if (!matrix.bias.defined()) return std::nullopt;
  return value_of(matrix.bias.parameter, matrix.bias.weight).select(0, expert);
}

at::Tensor shared_expert(const SharedExpert& expert, const kernels::Gating& gating,
                         const at::Tensor& x, const BatchContext& batch) {
  const auto inner = linears(x, {&expert.gate, &expert.up}, batch);
  const at::Tensor answer = linears(gated(gating, inner[0], inner[1]), {&expert.down}, batch)[0];
  return at::sigmoid(linears(x, {&expert.router}, batch)[0]) * answer;
}

/// transformers' experts, one after the other (modeling_mixtral.py, MixtralExperts).
/// @param probabilities receives the router's [T, experts]
at::Tensor mixture_of(const Layer& l, const at::Tensor& x, const BatchContext& batch,
                      const at::Tensor& routed_by, at::Tensor& probabilities) {
  const Mixture& m = l.feed_forward.mixture;
  at::Tensor logits =
      linears(rms_norm(routed_by, m.router_norm).to(at::kFloat), {&m.router}, batch)[0];
  if (m.router_scale != 1) logits = logits * m.router_scale;
  probabilities = at::softmax(logits, -1, at::kFloat);
  auto [weights, chosen] = at::topk(probabilities, m.top_k, -1);
  if (batch.shared_state)
    count_choices(batch.shared_state->balance, probabilities,
                  kernels::routes_of(chosen, logits.size(1)));
  if (m.normalise) weights = weights / weights.sum(-1, /*keepdim=*/true);
  if (m.expert_scale.defined()) {
    const at::Tensor factors = value_of(m.expert_scale.parameter, m.expert_scale.weight);
    weights = weights * at::index(factors, {chosen});
  }
  at::Tensor y = at::zeros_like(x);
  for (int64_t expert = 0; expert < logits.size(1); ++expert) {
    const at::Tensor places = at::nonzero(chosen == expert);
    if (places.size(0) == 0) continue;
    const at::Tensor tokens = places.select(1, 0), place = places.select(1, 1);
    const at::Tensor rows = x.index_select(0, tokens);
    const auto weight_of = [&](const ExpertMatrix& matrix) {
      return expert_weight(matrix, expert, logits.size(1), x.scalar_type(), batch.adapters);
    };
    const auto gate_up =
        at::linear(rows, weight_of(m.gate_up), expert_bias(m.gate_up, expert)).chunk(2, -1);
    const at::Tensor h = gated(l.gating, gate_up[0], gate_up[1]);
    const at::Tensor answers = at::linear(h, weight_of(m.down), expert_bias(m.down, expert));
    const at::Tensor weight = at::index(weights, {tokens, place}).unsqueeze(-1);
    y = y.index_add(0, tokens, (answers * weight).to(x.scalar_type()));
  }
  if (m.shared.defined()) y = y + shared_expert(m.shared, l.gating, x, batch);
  return y;
}

at::Tensor feed_forward_half(const Layer& l, const at::Tensor& x, const BatchContext& batch,
                             at::Tensor& probabilities) {
  const FeedForward& f = l.feed_forward;
  const at::Tensor in = rms_norm(x, f.in);
  if (f.mixture.defined() && !f.has_dense_half())
    return rms_norm(mixture_of(l, in, batch, in, probabilities), f.out);
  const auto gate_up = f.fuses_gate_up() ? linears(in, {&f.gate_up}, batch)[0].chunk(2, 1)
                                         : linears(in, {&f.gate, &f.up}, batch);
  const at::Tensor h = gated(l.gating, gate_up[0], gate_up[1]);
  const at::Tensor dense = linears(h, {&f.down}, batch)[0];
  if (!f.mixture.defined()) return rms_norm(dense, f.out);
  const at::Tensor experts = mixture_of(l, rms_norm(x, f.experts_in), batch, x, probabilities);
  return rms_norm(rms_norm(dense, f.dense_out) + rms_norm(experts, f.experts_out), f.out);
}

at::Tensor scaled(const Layer& l, const at::Tensor& y) {
  return l.residual_scale == 1 ? y : y * l.residual_scale;
}

at::Tensor mixer_block(const Layer& l, const at::Tensor& x, const BatchContext& batch,
                       SharedKeys& shared) {
  return x +
         scaled(l, rms_norm(l.mixer->plain(rms_norm(x, l.mixer_in), batch, shared), l.mixer_out));
}

/// @param probabilities receives the router's [T, experts], if there is a router
at::Tensor feed_forward_block(const Layer& l, const at::Tensor& x, const BatchContext& batch,
                              at::Tensor& probabilities) {
  return x + scaled(l, feed_forward_half(l, x, batch, probabilities));
}

/// What follows the two blocks.   @param channels per-layer inputs [T, size], or undefined
at::Tensor after_blocks(const Layer& l, at::Tensor y, const BatchContext& batch,
                        const at::Tensor& channels) {
  if (l.per_layer.defined()) {
    const at::Tensor h = gated(l.gating, linears(y, {&l.per_layer.gate}, batch)[0], channels);
    y = y + rms_norm(linears(h, {&l.per_layer.projection}, batch)[0], l.per_layer.out);
  }
  return l.scalar.defined() ? y * l.scalar.weight : y;
}

void add_grad(at::Tensor& sum, const at::Tensor& grad) {
  if (grad.defined()) sum = sum.defined() ? sum + grad : grad;
}

class PlainRun final : public LayerRun {
 public:
  PlainRun(const Layer& layer, const BatchContext& batch) : layer_(layer), batch_(batch) {}

  at::Tensor forward_of(const at::Tensor& x) {
    input_ = x.detach().requires_grad_();
    if (layer_.mixer->keys_of >= 0) {
      const SharedLayerState::Keys& keys = keys_of(layer_.mixer->keys_of);
      shared_ = {keys.k.detach().requires_grad_(), keys.v.detach().requires_grad_()};
    }
    if (layer_.per_layer.defined()) {
      channels_ = batch_.shared_state->per_layer.select(1, layer_.index).detach().requires_grad_();
    }
    middle_ =
        run_block(Recomputed::kMixer, [&] { return mixer_block(layer_, input_, batch_, shared_); });
    after_ = run_block(Recomputed::kFeedForward,
                       [&] { return feed_forward_block(layer_, middle_, batch_, probabilities_); });
    output_ = after_blocks(layer_, after_, batch_, channels_);
    if (layer_.mixer->shares_kv) {
      keys_of(layer_.index).k = shared_.k.detach();
      keys_of(layer_.index).v = shared_.v.detach();
    }
    return output_.detach();
  }

  at::Tensor backward(const at::Tensor& grad, bool needs_input_grad) override {
    Roots roots;
    roots.add(output_, grad);
    if (layer_.recomputed == Recomputed::kFeedForward) {
      roots.run();
      const at::AutoGradMode grad_mode(true);
      const at::Tensor d_after = after_.grad(), in = middle_.detach().requires_grad_();
      roots.add(feed_forward_block(layer_, in, batch_, probabilities_), d_after);
      add_balance(roots);
      roots.run();
      roots.add(middle_, in.grad());
    } else {
      add_balance(roots);
    }
    if (layer_.recomputed == Recomputed::kMixer) {
      roots.run();
      const at::AutoGradMode grad_mode(true);
      const at::Tensor d_middle = middle_.grad();
      roots.add(mixer_block(layer_, input_, batch_, shared_), d_middle);
    }
    if (layer_.mixer->shares_kv) {
      roots.add(shared_.k, keys_of(layer_.index).dk);
      roots.add(shared_.v, keys_of(layer_.index).dv);
    }
    roots.run();
    if (layer_.mixer->keys_of >= 0) {
      add_grad(keys_of(layer_.mixer->keys_of).dk, shared_.k.grad());
      add_grad(keys_of(layer_.mixer->keys_of).dv, shared_.v.grad());
    }
    if (channels_.defined() && channels_.grad().defined() &&
        batch_.shared_state->d_per_layer.defined())
      batch_.shared_state->d_per_layer.select(1, layer_.index).copy_(channels_.grad());
    return needs_input_grad ? input_.grad() : at::Tensor();
  }

 private:
  /// Where backward passes of autograd begin, and with which gradients.
  class Roots {
   public:
    void add(const at::Tensor& root, const at::Tensor& grad) {
      if (!grad.defined() || !root.requires_grad()) return;
      roots_.push_back(root);
      grads_.push_back(grad);
    }
    void run() {
      if (!roots_.empty()) torch::autograd::backward(roots_, grads_);
      roots_.clear();
      grads_.clear();
    }

   private:
    std::vector<at::Tensor> roots_, grads_;
  };

  /// The output of a block; of one that runs again in the backward pass, a leaf without its graph.
  template <typename Block>
  at::Tensor run_block(Recomputed which, Block&& block) const {
    if (layer_.recomputed != which) return block();
    const bool trains = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    return block().detach().requires_grad_(trains);
  }

  void add_balance(Roots& roots) const {
    if (!probabilities_.defined() || !batch_.shared_state) return;
    const at::Tensor& d = batch_.shared_state->balance.d_probability;
    roots.add(probabilities_, d.defined() ? d.expand_as(probabilities_) : d);
  }

  SharedLayerState::Keys& keys_of(int64_t layer) const {
    return batch_.shared_state->keys.at(static_cast<size_t>(layer));
  }

  const Layer& layer_;
  const BatchContext& batch_;
  at::Tensor input_, middle_, after_, output_, channels_, probabilities_;
  SharedKeys shared_;
};

at::Tensor plain_layer_forward(const Layer& layer, const at::Tensor& x, const BatchContext& batch,
                               std::unique_ptr<LayerRun>* run) {
  SFTRUN_CHECK(batch.adapters || run == nullptr);
  const at::AutoGradMode grad_mode(run != nullptr);
  auto kept = std::make_unique<PlainRun>(layer, batch);
  at::Tensor y = kept->forward_of(x);
  if (run != nullptr) *run = std::move(kept);
  return y;
}

constexpr int64_t kHeadRows = 256;  // in a chunk

/// Logits of a chunk in fp32.
at::Tensor logits_of_chunk(const at::Tensor& normed, const Head& head, const BatchContext& rows) {
  at::Tensor logits = linears(normed, {&head.linear}, rows)[0];
  if (head.logit_scale != 1) logits = logits * head.logit_scale;
  if (head.softcap > 0) logits = at::tanh(logits / head.softcap) * head.softcap;
  return logits.to(at::kFloat);
}

/// -log p of each label of a chunk, summed, or [rows] fp32.
at::Tensor losses_of_chunk(const at::Tensor& normed, const Head& head, const at::Tensor& labels,
                           const BatchContext& rows, at::Reduction::Reduction reduction) {
  return at::cross_entropy_loss(logits_of_chunk(normed, head, rows), labels.to(at::kLong), {},
                                reduction);
}

/// KL(a || b) of each row, from log-probabilities [rows, classes].
at::Tensor kl_divergence(const at::Tensor& a, const at::Tensor& b) {
  return at::kl_div(b, a, at::Reduction::None, /*log_target=*/true).sum(1);
}

/// The losses of a chunk [rows] fp32: the divergence as in TRL's GKDTrainer, and the cross-entropy.
std::pair<at::Tensor, at::Tensor> distilled_chunk(const at::Tensor& logits,
                                                  const at::Tensor& labels,
                                                  const TeacherTargets& targets) {
  constexpr double kLogOfZero = -1e4;  // 0 * -inf is not a number
  const double beta = targets.mix.beta;
  const at::Tensor log_probs = at::log_softmax(logits / targets.mix.temperature, 1),
                   tokens = targets.tokens.to(at::kLong),
                   teacher = targets.log_probs.clamp_min(kLogOfZero);
  at::Tensor classes = log_probs.gather(1, tokens);
  if (tokens.size(1) < logits.size(1)) {
    const at::Tensor is_top = at::zeros_like(logits, at::kBool).scatter(1, tokens, true);
    const at::Tensor rest = log_probs.masked_fill(is_top, -INFINITY).logsumexp(1, true);
    classes = at::cat({classes, rest.clamp_min(kLogOfZero)}, 1);
  }
  const at::Tensor known = teacher.narrow(1, 0, classes.size(1));
  at::Tensor divergence;
  if (beta == 0) {
    divergence = kl_divergence(known, classes);
  } else if (beta == 1) {
    divergence = kl_divergence(classes, known);
  } else {
    const at::Tensor mixture = at::logsumexp(
        at::stack({classes + std::log1p(-beta), known + std::log(beta)}), at::IntArrayRef{0});
    divergence =
        beta * kl_divergence(known, mixture) + (1 - beta) * kl_divergence(classes, mixture);
  }
  return {divergence.masked_fill(labels < 0, 0),
          at::cross_entropy_loss(logits, labels.to(at::kLong), {}, at::Reduction::None)};
}

/// Sum of factor * loss in fp64.   @param losses [rows], or their sum, which has no factors
at::Tensor sum_by(const at::Tensor& losses, const at::Tensor& factors) {
  const at::Tensor in_fp64 = losses.detach().to(at::kDouble);
  return factors.defined() ? (in_fp64 * factors).sum() : in_fp64.sum();
}

/// Final norm and head over chunks of rows.
/// @param losses_of (normed rows, first row, number of rows): [rows] or their sum, with a graph
HeadLoss head_loss_by(
    const at::Tensor& input, const Head& head, const kernels::GradScale& grad_scale,
    HeadGrad wanted, const BatchContext& batch,
    const std::function<at::Tensor(const at::Tensor&, int64_t, int64_t)>& losses_of) {
  SFTRUN_CHECK(batch.adapters || wanted == HeadGrad::kNone);
  const at::Tensor& row_factors = grad_scale.row_factors;
  const at::AutoGradMode grad_mode(wanted != HeadGrad::kNone);
  const at::Tensor rows = input.detach().requires_grad_(wanted == HeadGrad::kInput);
  const at::Tensor normed = rms_norm(rows, head.norm);
  HeadLoss result{at::zeros({}, input.options().dtype(at::kDouble)), {}, {}, {}};
  at::Tensor d_normed = normed.requires_grad() ? at::empty_like(normed) : at::Tensor();
  for (int64_t first = 0; first < input.size(0); first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, input.size(0) - first);
    const at::Tensor chunk =
        normed.narrow(0, first, count).detach().requires_grad_(d_normed.defined());
    const at::Tensor loss = losses_of(chunk, first, count);
    const at::Tensor factors =
        row_factors.defined() ? row_factors.narrow(0, first, count) : at::Tensor();
    result.loss_sum.add_(sum_by(loss, factors));
    if (!loss.requires_grad()) continue;
    at::Tensor d_loss = at::full_like(loss, grad_scale.value);
    if (factors.defined()) d_loss = d_loss * factors;
    if (grad_scale.factor.defined()) d_loss = d_loss * grad_scale.factor.squeeze();
    torch::autograd::backward({loss}, {d_loss});
    if (d_normed.defined()) d_normed.narrow(0, first, count).copy_(chunk.grad());
  }
  if (d_normed.defined()) torch::autograd::backward({normed}, {d_normed});
  if (wanted == HeadGrad::kInput) result.grad_input = rows.grad();
  return result;
}

HeadLoss head_loss(const at::Tensor& input, const Head& head, const at::Tensor& labels,
                   const kernels::GradScale& grad_scale, HeadGrad wanted,
                   const BatchContext& batch) {
  const auto reduction =
      grad_scale.row_factors.defined() ? at::Reduction::None : at::Reduction::Sum;
  return head_loss_by(input, head, grad_scale, wanted, batch,
                      [&](const at::Tensor& normed, int64_t first, int64_t count) {
                        return losses_of_chunk(normed, head, labels.narrow(0, first, count),
                                               dropout_rows(batch, first, count), reduction);
                      });
}

HeadLoss distillation_loss(const at::Tensor& input, const Head& head, const at::Tensor& labels,
                           const TeacherTargets& targets, const kernels::GradScale& grad_scale,
                           HeadGrad wanted, const BatchContext& batch) {
  const double alpha = targets.mix.alpha;
  at::Tensor divergence_sum = at::zeros({}, input.options().dtype(at::kDouble)),
             cross_entropy_sum = at::zeros_like(divergence_sum);
  HeadLoss result = head_loss_by(
      input, head, grad_scale, wanted, batch,
      [&](const at::Tensor& normed, int64_t first, int64_t count) {
        const TeacherTargets of_chunk{targets.tokens.narrow(0, first, count),
                                      targets.log_probs.narrow(0, first, count), targets.mix};
        const auto [divergence, cross_entropy] =
            distilled_chunk(logits_of_chunk(normed, head, dropout_rows(batch, first, count)),
                            labels.narrow(0, first, count), of_chunk);
        const at::Tensor& all = grad_scale.row_factors;
        const at::Tensor factors = all.defined() ? all.narrow(0, first, count) : all;
        divergence_sum.add_(sum_by(divergence, factors));
        cross_entropy_sum.add_(sum_by(cross_entropy, factors));
        return alpha * divergence + (1 - alpha) * cross_entropy;
      });
  result.divergence_sum = divergence_sum;
  result.cross_entropy_sum = cross_entropy_sum;
  return result;
}

at::Tensor plain_label_losses(const at::Tensor& input, const Head& head, const at::Tensor& labels,
                              const BatchContext& rows) {
  const at::NoGradGuard no_grad;
  const at::Tensor normed = rms_norm(input, head.norm);
  at::Tensor losses = at::empty({input.size(0)}, input.options().dtype(at::kFloat));
  for (int64_t first = 0; first < input.size(0); first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, input.size(0) - first);
    losses.narrow(0, first, count)
        .copy_(losses_of_chunk(normed.narrow(0, first, count), head, labels.narrow(0, first, count),
                               dropout_rows(rows, first, count), at::Reduction::None));
  }
  return losses;
}

HeadLoss plain_score_loss(const at::Tensor& input, const Head& head, const ScoreLoss& loss,
                          double scale, HeadGrad wanted) {
  const at::AutoGradMode grad_mode(wanted != HeadGrad::kNone);
  const at::Tensor rows = input.detach().requires_grad_(wanted == HeadGrad::kInput);
  const Linear& linear = head.linear;
  const at::Tensor scores = at::linear(rms_norm(rows, head.norm).to(at::kFloat),
                                       value_of(linear.weight_parameter, linear.weight));
  const ScoredLoss scored = loss(scores.detach());
  if (scores.requires_grad()) torch::autograd::backward({scores}, {scored.gradient * scale});
  return {scored.loss_sum, wanted == HeadGrad::kInput ? rows.grad() : at::Tensor()};
}

HeadLoss plain_embedding_loss(const at::Tensor& input, const Head& head, const PooledRows& pooling,
                              const ScoreLoss& loss, double scale, HeadGrad wanted) {
  const at::AutoGradMode grad_mode(wanted != HeadGrad::kNone);
  const at::Tensor rows = input.detach().requires_grad_(wanted == HeadGrad::kInput);
  const at::Tensor in = rms_norm(rows, head.norm).to(at::kFloat);
  const ScoredLoss scored = loss(pooled(in.detach(), pooling));
  if (in.requires_grad())
    torch::autograd::backward({in}, {of_pooled_rows(scored.gradient * scale, pooling)});
  return {scored.loss_sum, wanted == HeadGrad::kInput ? rows.grad() : at::Tensor()};
}

}  // namespace

const Backend& plain_backend() {
  static const Backend backend{"plain",
                               plain_layer_forward,
                               head_loss,
                               distillation_loss,
                               plain_label_losses,
                               plain_score_loss,
                               plain_embedding_loss,
                               /*reads_masters=*/true};
  return backend;
}

}  // namespace sftrun::layers
