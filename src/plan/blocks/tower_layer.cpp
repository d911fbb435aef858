#include <algorithm>

#include "blocks/tower_rows.h"

/// A layer of the tower (run_block in src/layers/tower/tower_pass.cpp).
namespace sftrun::plan::tower_layer {
namespace {

/// The products of one layer's halves, and what its graph keeps of them.
class TowerLayerBytes {
 public:
  TowerLayerBytes(const StepContext& step, int64_t layer)
      : step_(step),
        rows_(step),
        layer_(rows_.spec().layer),
        prefix_(rows_.spec().layers + std::to_string(layer) + "."),
        has_windows_(rows_.spec().window_side > 0 &&
                     std::ranges::count(rows_.spec().full_layers, layer) == 0),
        hidden_(rows_.hidden()),
        heads_(rows_.heads()),
        inner_(rows_.bytes(rows_.rows(), layer_.up.front().out_features)) {}

  int64_t kept() const { return kept_of_attention() + kept_of_mlp(); }
  int64_t in_forward() const { return std::max(attention_forward(), mlp_forward()); }
  /// The MLP's comes first; then its part of the graph is free.
  int64_t in_backward() const {
    return std::max(mlp_backward(), attention_backward() - kept_of_mlp());
  }

 private:
  bool trains(const spec::TowerLinear& linear) const {
    return rows_.trains(prefix_ + linear.module);
  }
  bool trains(const std::vector<spec::TowerLinear>& group) const {
    return std::any_of(group.begin(), group.end(),
                       [&](const spec::TowerLinear& linear) { return trains(linear); });
  }
  int64_t gradient(const spec::TowerLinear& linear) const {
    return rows_.matrix_gradient(prefix_ + linear.module, linear, rows_.rows());
  }
  int64_t low_rank(const std::vector<spec::TowerLinear>& group) const {
    int64_t bytes = 0;
    for (const spec::TowerLinear& linear : group)
      bytes += rows_.low_rank(prefix_ + linear.module, rows_.rows());
    return bytes;
  }
  /// Means and factors of a norm's rows.
  int64_t statistics(const spec::TowerNorm& norm, int64_t of_row = 1) const {
    if (!norm.exists()) return 0;
    const bool has_mean = norm.kind == spec::TowerNormKind::kLayerNorm;
    return TowerRows::fp32_bytes(rows_.rows(), has_mean ? 2 * of_row : of_row);
  }
  /// Inputs and outputs that are clamped are kept, too.
  int64_t clamped(const std::vector<spec::TowerLinear>& group) const {
    int64_t bytes = 0;
    for (const spec::TowerLinear& linear : group)
      if (linear.clamps)
        bytes += rows_.bytes(rows_.rows(),
                             (trains(linear) ? linear.in_features : 0) + linear.out_features);
    return bytes;
  }
  bool has_rope() const { return rows_.spec().rope != spec::TowerRope::kNone; }
  bool is_joint() const { return layer_.qkv.size() == 1; }
  int64_t num_head_norms() const {
    return (layer_.query.exists() ? 1 : 0) + (layer_.key.exists() ? 1 : 0) +
           (layer_.value.exists() ? 1 : 0);
  }
  /// Tiles of several sizes, or windows, are attended to one after the other and joined.
  bool joins_tiles() const {
    const ImageShape& images = step_.shape.images;
    return has_windows_ || images.patches != images.tiles * images.longest_tile;
  }
  int64_t log_sums() const { return TowerRows::fp32_bytes(rows_.rows(), rows_.spec().num_heads); }
  bool is_quick() const { return rows_.spec().activation == spec::TowerActivation::kQuickGelu; }
  int64_t num_up() const { return static_cast<int64_t>(layer_.up.size()); }

  int64_t kept_of_attention() const {
    int64_t bytes = statistics(layer_.attention_in) + low_rank(layer_.qkv) + clamped(layer_.qkv);
    if (layer_.attention_in.exists() && trains(layer_.qkv)) bytes += hidden_;
    bytes += (3 + num_head_norms()) * heads_;  // before and after their norms
    for (const spec::TowerNorm* norm : {&layer_.query, &layer_.key, &layer_.value})
      bytes += statistics(*norm, rows_.spec().num_heads);
    bytes += heads_ + log_sums();
    if (joins_tiles() && trains(layer_.output)) bytes += heads_;
    bytes += low_rank({layer_.output}) + clamped({layer_.output});
    if (layer_.attention_out.exists()) bytes += hidden_ + statistics(layer_.attention_out);
    if (step_.tower_training.trains(prefix_ + layer_.attention_scale)) bytes += hidden_;
    return bytes;
  }

  int64_t kept_of_mlp() const {
    int64_t bytes = hidden_ + statistics(layer_.mlp_in);  // the layer's middle
    if (trains(layer_.up)) bytes += hidden_;
    bytes +=
        low_rank(layer_.up) + low_rank({layer_.down}) + clamped(layer_.up) + clamped({layer_.down});
    bytes += num_up() * inner_;
    if (is_quick()) bytes += inner_;    // the sigmoid
    if (num_up() > 1) bytes += inner_;  // the gate, which multiplies
    if (trains(layer_.down)) bytes += inner_;
    if (layer_.mlp_out.exists()) bytes += hidden_ + statistics(layer_.mlp_out);
    if (step_.tower_training.trains(prefix_ + layer_.mlp_scale)) bytes += hidden_;
    return bytes;
  }

  /// q, k and v as products give them, and as attention reads them where that is another tensor.
  int64_t projected() const {
    const int64_t rotated = has_rope() ? 2 : 0;
    const int64_t copies = is_joint() ? 3 : std::max(rotated, num_head_norms());
    return (3 + copies) * heads_;
  }
  /// Of one of q and k, in fp32: the product with the cosine, the turned channels, their product with the sine, the sum, and
  /// the sum rounded.
  int64_t rotation() const {
    if (!has_rope()) return 0;
    const int64_t wide =
        TowerRows::fp32_bytes(rows_.rows(), rows_.spec().num_heads * rows_.spec().head_dim);
    return 4 * wide + rows_.rounded(wide + heads_);
  }
  int64_t attention_forward() const {
    const int64_t normed = hidden_ + 3 * heads_;
    // When q is rotated, k is as the product gave it.
    const int64_t rotating = projected() - (is_joint() || !has_rope() ? 0 : heads_) + rotation();
    const int64_t attending =
        projected() + heads_ + log_sums() + (joins_tiles() ? heads_ : hidden_);
    int64_t matrix = 0;
    for (const spec::TowerLinear& linear : layer_.qkv)
      matrix = std::max(matrix, rows_.unpacked(linear));
    return std::max({normed + matrix, rotating, attending + rows_.unpacked(layer_.output)});
  }
  int64_t mlp_forward() const {
    const int64_t up = num_up() * inner_, middle = hidden_;
    // Of two, the gate's activation beside its product with the other; quick GELU has two factors.
    const int64_t activating = (num_up() > 1 ? 2 : is_quick() ? 3 : 1) * inner_;
    return std::max({middle + hidden_ + up + rows_.unpacked(layer_.up.front()),
                     middle + up + activating,
                     middle + up + inner_ + hidden_ + rows_.unpacked(layer_.down)});
  }

  int64_t mlp_backward() const {
    const int64_t freed = trains(layer_.down) ? inner_ : 0;  // the input of the last product
    const int64_t through_down =
        std::max(gradient(layer_.down), inner_ + rows_.unpacked(layer_.down));
    const int64_t through_activation = (num_up() > 1 || is_quick() ? 3 : 2) * inner_ - freed;
    const int64_t kept_inner = kept_inner_bytes();
    const int64_t through_up =
        num_up() * inner_ + hidden_ - kept_inner +
        std::max(gradient(layer_.up.front()), rows_.unpacked(layer_.up.front()));
    return hidden_ + std::max({through_down, through_activation, through_up});
  }
  /// What the activation keeps.
  int64_t kept_inner_bytes() const {
    return (num_up() + (is_quick() ? 1 : 0) + (num_up() > 1 ? 1 : 0) +
            (trains(layer_.down) ? 1 : 0)) *
           inner_;
  }

  /// Beside the gradient of the layer's middle: of what attention read, of q, k and v, and their copies in fp32 that turn back.
  int64_t attention_backward() const {
    const int64_t projected_gradients = 3 * heads_;
    int64_t attending = heads_ + projected_gradients;
    if (step_.shape.on_gpu) attending += sums_on_gpu();
    if (joins_tiles()) attending += projected_gradients;
    const int64_t turning = projected_gradients + rotation();
    const int64_t through_qkv =
        projected_gradients * (is_joint() ? 2 : 1) + hidden_ + gradient(layer_.qkv.front());
    return hidden_ + std::max({attending, turning, through_qkv});
  }
  /// LibTorch's flash attention sums the gradient of q in fp32 (mha_bwd in flash_api.cpp), with heads of a multiple of 32 channels.
  int64_t sums_on_gpu() const {
    constexpr int64_t kHeadStep = 32;
    const int64_t channels = (rows_.spec().head_dim + kHeadStep - 1) / kHeadStep * kHeadStep;
    return TowerRows::fp32_bytes(rows_.rows(), rows_.spec().num_heads * (channels + 1));
  }

  const StepContext& step_;
  TowerRows rows_;
  const spec::TowerLayer& layer_;
  std::string prefix_;
  bool has_windows_;
  int64_t hidden_, heads_, inner_;
};

TrainingBytes training(const StepContext& step, int64_t layer) {
  const TowerLayerBytes bytes(step, layer);
  return {
      .kept = bytes.kept(), .in_forward = bytes.in_forward(), .in_backward = bytes.in_backward()};
}

GenerationBytes generation(const StepContext& pass, int64_t layer) {
  return {.pass = TowerLayerBytes(pass, layer).in_forward()};
}

}  // namespace

const BlockRow kRow{.name = "tower_layer", .training = training, .generation = generation};

}  // namespace sftrun::plan::tower_layer
