#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sftrun/core/model_part.h"

/// The image side of a vision-language model as data: a tower that turns patches of pixels into hidden states, mergers that turn these
/// into rows of the text, and how the text model treats such rows. docs/vision-models.md says where transformers computes it.
namespace sftrun::spec {

using sftrun::ModelPart;

/// What is gathered, sharded and placed as one, in the order in which it computes.
enum class VisionUnit : uint8_t {
  kNone,       ///< a tensor of the text model
  kEmbedding,  ///< patches, positions, class token, and the norm before the layers
  kLayer,      ///< one of the tower's layers
  kOutput,     ///< what follows the tower's last layer before the projector
  kProjector,  ///< a merger: the last one, or one of DeepStack
  kFeatures,   ///< a projector of features that were computed elsewhere
};

/// How a patch's values lie in the rows that the image processor makes.
enum class PatchOrder : uint8_t {
  kChannelsFirst,  ///< (channel, frame, row, column), the order of a convolution's kernel
  kChannelsLast,   ///< (row, column, channel)
};

/// Over hidden states, or over each head.
enum class TowerNormKind : uint8_t {
  kLayerNorm,   ///< with weight and bias
  kRms,         ///< RMSNorm: x / rms(x) rounded to x's dtype, then times the weight
  kRmsAddsOne,  ///< Gemma 3: x / rms(x) times 1 + weight in fp32
  kRmsFp32,     ///< Gemma 4: x / rms(x) times the weight in fp32
  kRmsPlain,    ///< without a weight
};

struct TowerNorm {
  TowerNormKind kind = TowerNormKind::kLayerNorm;
  std::string module;  ///< HF name; empty with a size: a norm without weights
  int64_t size = 0;    ///< 0: there is no norm
  double eps = 1e-6;
  bool exists() const { return size > 0; }
};

struct TowerLinear {
  std::string module;  ///< HF name
  int64_t in_features = 0, out_features = 0;
  bool bias = false;
  /// Inputs and outputs are clamped to the range in the scalars `input_min`, `input_max`, `output_min`, `output_max` of the module
  /// `bounds` (Gemma 4 E2B and E4B).
  bool clamps = false;
  std::string
      bounds;  ///< HF name, as `module`: "self_attn.q_proj" around "self_attn.q_proj.linear"
  bool exists() const { return in_features > 0; }
};

enum class TowerActivation : uint8_t { kSilu, kGelu, kGeluTanh, kQuickGelu };

/// x [rows, values] -> [rows, hidden]: a convolution whose stride is its kernel, as a matrix product.
struct PatchEmbedding {
  std::string module;  ///< of the matrix [hidden, channels * frames * side * side]
  int64_t side = 0;    ///< pixels
  int64_t channels = 3, frames = 1;
  PatchOrder order = PatchOrder::kChannelsFirst;
  bool bias = false;
  /// In files the matrix is a convolution's kernel [hidden, channels, (frames,) side, side].
  bool is_convolution = true;
  bool has_frames_axis = false;  ///< that kernel has an axis for frames
  bool is_centred = false;       ///< pixels x become 2 (x - 1/2) first
  int64_t values() const { return channels * frames * side * side; }
};

/// Learned positions that are added to the patches' rows.
enum class TowerPositions : uint8_t {
  kNone,
  kTable,         ///< row i of the table for patch i of a tile, a class token's first
  kInterpolated,  ///< a square table, bilinearly at the corners-aligned place of the patch (Qwen3-VL)
  kAxes,          ///< one table for columns [0], one for rows [1], summed (Gemma 4)
};

/// Rotary positions of rows and columns in the tower's attention. D: size of a head. f_j = theta^(-2j / (D / 2)).
enum class TowerRope : uint8_t {
  kNone,
  kHalves,  ///< Qwen: angles [row f_j, column f_j], j < D / 4, twice; pairs are D / 2 apart; in fp32
  kAlternating,  ///< Pixtral: [row g_0, row g_2, …, column g_1, column g_3, …] twice, g_j = theta^(-2j / D)
  kAxes,  ///< Gemma 4: the first half of a head rotates by the column, the second by the row; pairs are D / 4 apart
};

/// One layer: x += scale * norm(attention(norm(x))); x += scale * norm(mlp(norm(x))). Modules are named below `VisionSpec::layers` and
/// the layer's number.
struct TowerLayer {
  TowerNorm attention_in, attention_out, mlp_in, mlp_out;
  std::vector<TowerLinear> qkv;  ///< one matrix [q; k; v], or q, k, v
  TowerNorm query, key, value;   ///< over each head, or over all of them (`size`)
  TowerLinear output;
  std::vector<TowerLinear> up;  ///< one, or gate and up
  TowerLinear down;
  std::string attention_scale,
      mlp_scale;  ///< names of tensors [hidden] (InternVL's lambda_1, lambda_2); empty: none
};

/// How neighbouring patches become one row.
enum class PatchMerge : uint8_t {
  kNone,
  kConcat,               ///< a square of rows side by side, channels of (row, column) in that order
  kConcatChannelsFirst,  ///< Mistral 3: for each channel the square
  kMean,                 ///< the square's mean
};

/// Rows of the tower -> rows of the text: norm, merge, norm, linears.
struct Merger {
  TowerNorm before, after;  ///< of the merge
  PatchMerge merge = PatchMerge::kNone;
  int64_t side = 1;  ///< patches of the square's side
  /// Gemma 4: the mean is multiplied by sqrt(hidden) in fp32; then (x - std_bias) * std_scale with the tensors of these names.
  bool scales_mean = false;
  std::string std_bias, std_scale;  ///< [hidden], buffers of the tower; empty: none
  struct Step {
    TowerLinear linear;
    bool gelu = false;  ///< the exact GELU follows
  };
  std::vector<Step> steps;
  /// In files the first matrix is [in_features, out_features] under its module's name (Gemma 3).
  bool is_transposed_parameter = false;
};

/// Which rows see later rows of the same image, in the text model's attention.
enum class BothWays : uint8_t {
  kNever,
  kEveryLayer,      ///< Gemma 3
  kWindowedLayers,  ///< Gemma 4: layers with a sliding window only
};

/// The tower, the mergers, and the text model's rules.
struct VisionSpec {
  std::string model_type;   ///< of the whole model: "qwen3_vl"
  std::string model_class;  ///< "Qwen3VLForConditionalGeneration"
  std::string prefix;       ///< of the tower's modules: "model.visual."
  std::string layers;       ///< of its layers: "model.visual.blocks."
  /// Prefixes of the tensors that are no part of the tower but of the projector; some begin with `prefix`.
  std::vector<std::string> projector;
  /// Beginnings of tensors below `prefix` that files may have and nothing reads (SigLIP's pooling head).
  std::vector<std::string> unused;

  int64_t hidden_size = 0, intermediate_size = 0, num_layers = 0, num_heads = 0, head_dim = 0;
  int64_t image_size = 0;  ///< pixels of a tile's side, where all tiles have one size; else 0
  TowerActivation activation = TowerActivation::kGeluTanh;
  double attention_scale = 0;  ///< 0: 1 / sqrt(head_dim)

  PatchEmbedding patches;
  std::string class_token;  ///< tensor [hidden] before the patches of each tile; empty: none
  bool class_token_in_1_1_hidden = false;  ///< files have it as [1, 1, hidden]
  TowerPositions positions = TowerPositions::kNone;
  std::string position_table;  ///< [rows, hidden]; kAxes: [2, rows, hidden]
  int64_t position_rows = 0;
  bool position_table_in_1_rows = false;  ///< files have it as [1, rows, hidden]
  TowerNorm pre_norm;                     ///< after the positions (CLIP, Pixtral)
  TowerRope rope = TowerRope::kNone;
  double rope_theta = 10000;

  TowerLayer layer;  ///< the same in all layers
  /// Qwen2.5-VL: layers beside `full_layers` see windows of this many merged patches a side; 0: each layer sees whole frames.
  int64_t window_side = 0;
  std::vector<int64_t> full_layers;

  /// Layers that compute: all, or fewer where an earlier output is used (LLaVA's -2). The others and `post_norm` then have no part in
  /// the result, though files have them.
  int64_t num_used_layers = 0;
  TowerNorm post_norm;         ///< of the last layer's output
  bool uses_post_norm = true;  ///< false: files have it, nothing reads it
  bool drops_class_token = true;

  Merger merger;
  /// DeepStack (arXiv:2406.04334): the output of tower layer `deepstack_layers[k]`, merged by `deepstack[k]`, is added to the image's
  /// rows in the output of the text's layer k.
  std::vector<int64_t> deepstack_layers;
  std::vector<Merger> deepstack;
  std::string
      newline;  ///< tensor [text hidden] after each row of an unpadded image (LLaVA-NeXT); empty: none
  /// (height, width) in pixels of the canvases that images are fitted to, where `newline` is set.
  std::vector<std::array<int64_t, 2>> canvases;

  // The text model.
  int64_t image_token_id = -1;
  BothWays both_ways = BothWays::kNever;
  /// The id whose embeddings stand for images where per-layer inputs are made of tokens (Gemma 4); -1: the image's own.
  int64_t embedded_as = -1;
};

}  // namespace sftrun::spec
