#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/linear.h"
#include "sftrun/layers/members.h"
#include "sftrun/spec/vision_spec.h"

/// The image side of a vision-language model, by its `spec::VisionSpec`: tower, mergers, and their passes. Autograd runs inside a unit;
/// products, RMS norms and adapters are those of the fused backend, and gradients go directly to `Parameter::grad`.
namespace sftrun::layers {

/// A norm of spec::TowerNormKind; not there if its size is 0.
struct TowerNorm {
  spec::TowerNorm spec;
  Norm rms;             ///< every kind but kLayerNorm; kRmsPlain has ones
  Weight weight, bias;  ///< kLayerNorm
  bool exists() const { return spec.exists(); }
};

/// A linear layer with inputs and outputs in a range, where `bounds` are defined.
struct TowerLinear {
  spec::TowerLinear spec;
  Linear linear;
  struct Bounds {
    Weight input_min, input_max, output_min, output_max;  ///< scalars
  } bounds;
};

struct TowerBlock {
  TowerNorm attention_in, attention_out, mlp_in, mlp_out;
  std::vector<TowerLinear> qkv;  ///< one, or three
  TowerNorm query, key, value;
  TowerLinear output;
  std::vector<TowerLinear> up;  ///< one, or gate and up
  TowerLinear down;
  Weight attention_scale, mlp_scale;  ///< [hidden], or undefined
};

struct TowerMerger {
  spec::Merger spec;
  TowerNorm before, after;
  Weight std_bias, std_scale;      ///< [hidden], or undefined
  std::vector<TowerLinear> steps;  ///< as `spec.steps`
};

struct Tower {
  spec::VisionSpec spec;
  at::ScalarType dtype = at::kFloat;  ///< of hidden states
  TowerLinear patches;
  Weight class_token, positions;
  Weight newline;  ///< [text hidden], the end of a row of an unpadded image; or undefined
  TowerNorm pre_norm, post_norm;
  std::vector<TowerBlock> blocks;
  TowerMerger merger;
  std::vector<TowerMerger> deepstack;

  bool is_defined() const { return !patches.spec.module.empty(); }
  // Its units, counted from the tower's first: the patches, each layer, the mergers with the norm before them.
  int64_t num_units() const { return static_cast<int64_t>(blocks.size()) + 2; }
  int64_t layer_unit(int64_t layer) const { return 1 + layer; }
  int64_t merger_unit() const { return num_units() - 1; }
};

/// A tower without weights: its members and their names. Layers that nothing reads are left out.
Tower make_tower(spec::VisionSpec spec);

/// The tensors of one unit of a tower by name.
struct TowerMembers {
  struct WeightMember {
    std::string name;
    Place place;
  };
  struct LinearMember {
    Linear* linear;  ///< its name is set; it may be quantised and have an adapter
    int64_t in_features = 0, out_features = 0;
    bool bias = false;
  };
  std::vector<WeightMember> weights;
  std::vector<LinearMember> linears;
};
/// [num_units]   @param tower must stay where it is
std::vector<TowerMembers> members_of(Tower& tower);

/// Sets `dtype`, and the weights of norms that have none in files: ones.
void complete(Tower& tower, at::ScalarType dtype, at::Device device);

/// Patches of a tile: an image, a part of one, or a frame. Its patches see each other, and no others.
struct TowerTile {
  int64_t rows = 0, columns = 0;  ///< multiples of the merger's side
  /// Key of the random numbers of dropout: the document, and the tile's first patch counted in it.
  uint32_t document = 0, first_patch = 0;
  int64_t patches() const { return rows * columns; }
};

/// Images of a micro-batch.
struct TowerInput {
  /// [P, values] fp32: the tiles' patches, one tile after the other. Within a tile the patches of a merged square are consecutive, squares
  /// from the top left.
  at::Tensor patches;
  std::vector<TowerTile> tiles;
  /// [N] int64: the merged row that each feature is; -1: `Tower::newline`. Undefined: each merged row is a feature, in order.
  at::Tensor feature_rows;
};

/// Where the patches of a micro-batch are: what its layers need beside hidden states. R: rows of hidden states, P and the class tokens.
struct TowerLayout {
  /// Tiles of the same length, one after the other.
  struct Run {
    int64_t first_row = 0, tiles = 0, length = 0;
  };
  std::vector<Run> tiles;    ///< rows that see each other
  std::vector<Run> windows;  ///< the same in layers with windows
  /// `tiles` and `windows` as documents, each one span that is seen both ways. Attention on CUDA reads their tensors there.
  kernels::BatchMetadata seen_in_tiles, seen_in_windows;
  at::Tensor
      order;  ///< [P / side^2] int64: the merged square at each place, by windows; undefined: as the input
  at::Tensor positions;         ///< [R] or [P, taps] int64, rows of the table; undefined: none
  at::Tensor position_weights;  ///< [P, taps] fp32, or undefined
  at::Tensor cos, sin;          ///< [R, 1, head_dim] fp32, or undefined
  int64_t class_tokens = 0;     ///< before each tile's patches: 0 or 1
  BatchContext rows, merged;    ///< dropout's inputs of hidden states and of merged rows
};

/// All tensors are on the host, and so are the keys of dropout: what is on a GPU is to be copied there.
/// @param like dropout's seed and step, and whether it is on
/// @throws DataError for a tile whose size the table of positions does not have
TowerLayout tower_layout(const spec::VisionSpec& spec, const std::vector<TowerTile>& tiles,
                         const BatchContext& like);

/// What a unit's forward pass keeps for its backward pass.
enum class TowerKeeps : uint8_t { kNothing, kInput, kGraph };

/// Images of one micro-batch on their way through the tower. It stays where it is while a backward pass may follow.
class TowerPass {
 public:
  /// All must outlive the pass.
  TowerPass(const Tower& tower, const TowerInput& input, const TowerLayout& layout);
  TowerPass(const TowerPass&) = delete;
  TowerPass& operator=(const TowerPass&) = delete;
  ~TowerPass();

  /// Units in order.
  void forward(int64_t unit, TowerKeeps keeps);
  /// Units the other way, each once after a forward pass that kept something. Adds to the parameters' gradients.
  /// @param needs_input_gradient a unit before it trains
  void backward(int64_t unit, bool needs_input_gradient);

  /// [P / side^2, text hidden] in the compute dtype, in the tiles' order, or as `TowerInput::feature_rows` says: what stands in the text
  /// for the images.
  const at::Tensor& features() const { return features_; }
  /// Of each of `Tower::deepstack`, the same shape.
  const std::vector<at::Tensor>& deepstack_features() const { return deepstack_features_; }
  /// Gradients of the features, before the backward pass of the mergers; undefined: zero.
  void set_gradients(at::Tensor features, std::vector<at::Tensor> deepstack);

 private:
  struct Kept;
  at::Tensor run_unit(int64_t unit, const at::Tensor& input);
  std::vector<at::Tensor> run_mergers(const at::Tensor& input, const std::vector<at::Tensor>& taps);
  at::Tensor chosen_features(const at::Tensor& merged) const;

  const Tower& tower_;
  const TowerInput& input_;
  const TowerLayout& layout_;
  at::Tensor hidden_, grad_;
  std::vector<at::Tensor> taps_, tap_grads_;  // outputs of layers that DeepStack reads
  std::vector<Kept> kept_;
  at::Tensor features_, d_features_;
  std::vector<at::Tensor> deepstack_features_, d_deepstack_;
};

}  // namespace sftrun::layers
