#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/layers/tower.h"
#include "tower/tower_ops.h"

namespace sftrun::layers {
namespace {

using Runs = std::vector<TowerLayout::Run>;

at::Tensor activated(const at::Tensor& x, spec::TowerActivation activation) {
  switch (activation) {
    case spec::TowerActivation::kSilu:
      return at::silu(x);
    case spec::TowerActivation::kGelu:
      return at::gelu(x);
    case spec::TowerActivation::kGeluTanh:
      return at::gelu(x, "tanh");
    case spec::TowerActivation::kQuickGelu:
      return x * at::sigmoid(1.702 * x);
  }
  return {};
}

/// On a CPU: tiles of the same length at once.   @param q, k, v [R, heads, head_dim]   @return [R, heads * head_dim]
at::Tensor attention_in_runs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const Runs& runs, double scale) {
  std::vector<at::Tensor> parts;
  for (const TowerLayout::Run& run : runs) {
    const auto heads_first = [&](const at::Tensor& x) {
      return x.narrow(0, run.first_row, run.tiles * run.length)
          .view({run.tiles, run.length, x.size(1), x.size(2)})
          .transpose(1, 2);
    };
    const at::Tensor y =
        at::scaled_dot_product_attention(heads_first(q), heads_first(k), heads_first(v),
                                         std::nullopt, 0.0, /*is_causal=*/false, scale);
    parts.push_back(y.transpose(1, 2).reshape({run.tiles * run.length, -1}));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

at::Tensor attention_half(const Tower& tower, const TowerBlock& block, int64_t layer,
                          const at::Tensor& x, const TowerLayout& layout) {
  const spec::VisionSpec& spec = tower.spec;
  std::vector<at::Tensor> qkv =
      tower_linears(tower_norm(x, block.attention_in), block.qkv, layout.rows);
  if (qkv.size() == 1) qkv = qkv[0].chunk(3, -1);
  const auto heads = [&](const at::Tensor& y, const TowerNorm& norm) {
    const at::Tensor rows =
        norm.spec.size == spec.head_dim ? y.reshape({-1, spec.num_heads, spec.head_dim}) : y;
    return tower_norm(rows, norm).view({-1, spec.num_heads, spec.head_dim});
  };
  at::Tensor q = heads(qkv[0].contiguous(), block.query), k = heads(qkv[1].contiguous(), block.key);
  const at::Tensor v = heads(qkv[2].contiguous(), block.value);
  if (layout.cos.defined()) {
    const int64_t width = spec.rope == spec::TowerRope::kAxes ? spec.head_dim / 2 : spec.head_dim;
    q = rotate(q, layout.cos, layout.sin, width);
    k = rotate(k, layout.cos, layout.sin, width);
  }
  const bool is_full =
      layout.windows.empty() ||
      std::find(spec.full_layers.begin(), spec.full_layers.end(), layer) != spec.full_layers.end();
  const double scale = spec.attention_scale != 0
                           ? spec.attention_scale
                           : 1 / std::sqrt(static_cast<double>(spec.head_dim));
  const at::Tensor y =
      q.is_cpu() ? attention_in_runs(q, k, v, is_full ? layout.tiles : layout.windows, scale)
                 : whole_attention(q, k, v, is_full ? layout.seen_in_tiles : layout.seen_in_windows,
                                   scale);
  return tower_norm(tower_linear(y, block.output, layout.rows), block.attention_out);
}

at::Tensor mlp_half(const Tower& tower, const TowerBlock& block, const at::Tensor& x,
                    const TowerLayout& layout) {
  const std::vector<at::Tensor> up =
      tower_linears(tower_norm(x, block.mlp_in), block.up, layout.rows);
  at::Tensor h = activated(up[0], tower.spec.activation);
  if (up.size() > 1) h = h * up[1];
  return tower_norm(tower_linear(h, block.down, layout.rows), block.mlp_out);
}

at::Tensor scaled_by(const at::Tensor& y, const Weight& scale) {
  return scale.defined() ? y * read_weight(scale) : y;
}

at::Tensor run_block(const Tower& tower, int64_t layer, const at::Tensor& x,
                     const TowerLayout& layout) {
  const TowerBlock& block = tower.blocks[static_cast<size_t>(layer)];
  const at::Tensor middle =
      x + scaled_by(attention_half(tower, block, layer, x, layout), block.attention_scale);
  return middle + scaled_by(mlp_half(tower, block, middle, layout), block.mlp_scale);
}

at::Tensor with_class_tokens(const Tower& tower, const at::Tensor& rows,
                             const TowerLayout& layout) {
  if (layout.class_tokens == 0) return rows;
  SFTRUN_CHECK(layout.tiles.size() == 1);  // tower_layout refuses other sizes
  const TowerLayout::Run& run = layout.tiles[0];
  const at::Tensor token = read_weight(tower.class_token)
                               .to(rows.scalar_type())
                               .view({1, 1, -1})
                               .expand({run.tiles, 1, -1});
  return at::cat({token, rows.view({run.tiles, run.length - 1, -1})}, 1)
      .view({run.tiles * run.length, -1});
}

/// Adds learned positions to rows.
at::Tensor with_positions(const Tower& tower, const at::Tensor& x, const TowerLayout& layout) {
  if (!layout.positions.defined()) return x;
  const at::Tensor table = read_weight(tower.positions);
  const at::Tensor rows = at::embedding(table.view({-1, table.size(-1)}), layout.positions);
  if (rows.dim() == 2) return x + rows;
  if (!layout.position_weights.defined()) return x + rows.sum(1);
  // In fp32, as transformers multiplies by weights in fp32.
  const at::Tensor weighted = (rows.to(at::kFloat) * layout.position_weights.unsqueeze(-1)).sum(1);
  return x + weighted.to(x.scalar_type());
}

at::Tensor run_patches(const Tower& tower, const TowerInput& input, const TowerLayout& layout) {
  const spec::VisionSpec& spec = tower.spec;
  at::Tensor pixels = input.patches;
  if (spec.patches.is_centred) pixels = 2 * (pixels - 0.5);
  at::Tensor x = tower_linear(pixels.to(tower.dtype), tower.patches, layout.rows);
  x = squares_in(x, layout.order);
  x = with_positions(tower, with_class_tokens(tower, x, layout), layout);
  return tower_norm(x, tower.pre_norm);
}

at::Tensor without_class_tokens(const Tower& tower, const at::Tensor& rows,
                                const TowerLayout& layout) {
  if (layout.class_tokens == 0 || !tower.spec.drops_class_token) return rows;
  const TowerLayout::Run& run = layout.tiles[0];
  return rows.view({run.tiles, run.length, -1})
      .narrow(1, 1, run.length - 1)
      .reshape({-1, rows.size(1)});
}

/// One row for each square of patches.
at::Tensor merged(const TowerMerger& merger, const at::Tensor& rows) {
  const int64_t square = merger.spec.side * merger.spec.side, width = rows.size(1);
  const at::Tensor squares = rows.reshape({-1, square, width});
  switch (merger.spec.merge) {
    case spec::PatchMerge::kNone:
      return rows;
    case spec::PatchMerge::kConcat:
      return squares.view({-1, square * width});
    case spec::PatchMerge::kConcatChannelsFirst:
      return squares.transpose(1, 2).reshape({-1, square * width});
    case spec::PatchMerge::kMean: {
      at::Tensor mean = squares.to(at::kFloat).mean(1);
      if (!merger.spec.scales_mean) return mean.to(rows.scalar_type());
      mean = mean.to(rows.scalar_type()).to(at::kFloat) * std::sqrt(static_cast<double>(width));
      if (merger.std_bias.defined())
        mean =
            (mean - merger.std_bias.weight.to(at::kFloat)) * merger.std_scale.weight.to(at::kFloat);
      return mean.to(rows.scalar_type());
    }
  }
  return {};
}

at::Tensor run_merger(const TowerMerger& merger, const at::Tensor& rows,
                      const TowerLayout& layout) {
  at::Tensor x = tower_norm(merged(merger, tower_norm(rows, merger.before)), merger.after);
  for (size_t i = 0; i < merger.steps.size(); ++i) {
    x = tower_linear(x, merger.steps[i], layout.merged);
    if (merger.spec.steps[i].gelu) x = at::gelu(x);
  }
  return x;
}

at::Tensor added(const at::Tensor& sum, const at::Tensor& grad) {
  if (!grad.defined()) return sum;
  return sum.defined() ? sum + grad : grad;
}

}  // namespace

/// Of one unit: its input, and with a graph its outputs.
struct TowerPass::Kept {
  TowerKeeps keeps = TowerKeeps::kNothing;
  at::Tensor input;
  std::vector<at::Tensor> taps, outputs;  // of the mergers; one output of other units
};

TowerPass::TowerPass(const Tower& tower, const TowerInput& input, const TowerLayout& layout)
    : tower_(tower),
      input_(input),
      layout_(layout),
      taps_(tower.deepstack.size()),
      tap_grads_(tower.deepstack.size()),
      kept_(static_cast<size_t>(tower.num_units())) {}

TowerPass::~TowerPass() = default;

/// @param merged [P / side^2, text hidden]
at::Tensor TowerPass::chosen_features(const at::Tensor& merged) const {
  const at::Tensor& rows = input_.feature_rows;
  if (!rows.defined()) return merged;
  const at::Tensor newline = read_weight(tower_.newline).to(merged.scalar_type());
  // Not rows of one table: the gradient of the row that all share is then a sum in a fixed order.
  return at::where((rows < 0).unsqueeze(1), newline.unsqueeze(0),
                   merged.index_select(0, rows.clamp_min(0)));
}

std::vector<at::Tensor> TowerPass::run_mergers(const at::Tensor& input,
                                               const std::vector<at::Tensor>& taps) {
  const at::Tensor places = layout_.order.defined() ? layout_.order.argsort() : at::Tensor();
  const auto in_order = [&](const at::Tensor& rows) { return squares_in(rows, places); };
  const at::Tensor last =
      without_class_tokens(tower_, tower_norm(input, tower_.post_norm), layout_);
  std::vector<at::Tensor> features = {
      chosen_features(in_order(run_merger(tower_.merger, last, layout_)))};
  for (size_t i = 0; i < taps.size(); ++i)
    features.push_back(in_order(run_merger(tower_.deepstack[i], taps[i], layout_)));
  return features;
}

at::Tensor TowerPass::run_unit(int64_t unit, const at::Tensor& input) {
  return unit == 0 ? run_patches(tower_, input_, layout_)
                   : run_block(tower_, unit - 1, input, layout_);
}

void TowerPass::forward(int64_t unit, TowerKeeps keeps) {
  const bool is_merger = unit == tower_.merger_unit();
  Kept& kept = kept_[static_cast<size_t>(unit)];
  kept.keeps = keeps;
  const auto run = [&](bool tracks) {
    const at::AutoGradMode grad_mode(tracks);
    const auto leaf = [&](const at::Tensor& x) {
      return x.defined() ? x.detach().requires_grad_(tracks) : x;
    };
    const at::Tensor input = leaf(hidden_);
    std::vector<at::Tensor> taps;
    if (is_merger)
      for (const at::Tensor& tap : taps_) taps.push_back(leaf(tap));
    std::vector<at::Tensor> outputs =
        is_merger ? run_mergers(input, taps) : std::vector{run_unit(unit, input)};
    if (keeps != TowerKeeps::kNothing) kept.input = input, kept.taps = taps;
    if (tracks) kept.outputs = outputs;
    return outputs;
  };
  const std::vector<at::Tensor> outputs = run(keeps == TowerKeeps::kGraph);
  if (is_merger) {
    features_ = outputs[0].detach();
    deepstack_features_.clear();
    for (size_t i = 1; i < outputs.size(); ++i) deepstack_features_.push_back(outputs[i].detach());
    hidden_.reset();
    for (at::Tensor& tap : taps_) tap.reset();
    return;
  }
  hidden_ = outputs[0].detach();
  const std::vector<int64_t>& tapped = tower_.spec.deepstack_layers;
  for (size_t i = 0; i < tapped.size(); ++i)
    if (unit == tower_.layer_unit(tapped[i])) taps_[i] = hidden_;
}

void TowerPass::set_gradients(at::Tensor features, std::vector<at::Tensor> deepstack) {
  d_features_ = std::move(features);
  d_deepstack_ = std::move(deepstack);
}

void TowerPass::backward(int64_t unit, bool needs_input_gradient) {
  Kept kept = std::exchange(kept_[static_cast<size_t>(unit)], {});
  SFTRUN_CHECK(kept.keeps != TowerKeeps::kNothing);
  const bool is_merger = unit == tower_.merger_unit();
  if (kept.keeps == TowerKeeps::kInput) {
    const at::AutoGradMode grad_mode(true);
    if (kept.input.defined()) kept.input.requires_grad_(needs_input_gradient);
    for (at::Tensor& tap : kept.taps) tap.requires_grad_(needs_input_gradient);
    kept.outputs =
        is_merger ? run_mergers(kept.input, kept.taps) : std::vector{run_unit(unit, kept.input)};
  }
  std::vector<at::Tensor> grads;
  if (is_merger) {
    grads = {std::exchange(d_features_, {})};
    for (at::Tensor& grad : d_deepstack_) grads.push_back(std::move(grad));
  } else {
    grads = {std::exchange(grad_, {})};
    const std::vector<int64_t>& tapped = tower_.spec.deepstack_layers;
    for (size_t i = 0; i < tapped.size(); ++i)
      if (unit == tower_.layer_unit(tapped[i]))
        grads[0] = added(grads[0], std::exchange(tap_grads_[i], {}));
  }
  std::vector<at::Tensor> roots, root_grads;
  for (size_t i = 0; i < kept.outputs.size(); ++i) {
    if (i >= grads.size() || !grads[i].defined() || !kept.outputs[i].requires_grad()) continue;
    roots.push_back(kept.outputs[i]);
    root_grads.push_back(grads[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, root_grads);
  if (!needs_input_gradient) return;
  grad_ = kept.input.grad();
  for (size_t i = 0; i < kept.taps.size(); ++i) tap_grads_[i] = kept.taps[i].grad();
}

}  // namespace sftrun::layers
