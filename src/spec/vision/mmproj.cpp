#include "sftrun/spec/mmproj.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "sftrun/core/error.h"
#include "sftrun/core/name_list.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/spec/vision_tensors.h"

namespace sftrun::spec {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// llama.cpp's projector of some models: names that differ from others', and what is written or refused.
struct ProjectorRow {
  std::string_view type;  ///< clip.projector_type
  NameList models;        ///< `VisionSpec::model_type`
  /// LLaVA's towers have projectors of their own.
  bool of_pixtral = false;
  std::string_view type_key = "clip.projector_type";
  std::string_view before = {}, after = {};  ///< the merger's norms
  NameList steps = {};                       ///< the merger's linears
  bool splits_qkv = false;                   ///< one matrix of q, k and v as three
  MmprojType patches = MmprojType::kKernel;
  double rope_theta = 0;  ///< llama.cpp's constant; 0: no rotary positions
  /// What the loader does not read; empty: all is well.
  std::string (*refused)(const VisionSpec& vision) = nullptr;
  void (*describe)(const VisionSpec& vision, const MmprojImages& images,
                   ordered_json& metadata) = nullptr;
};

constexpr const char *kScale = "clip.vision.projector.scale_factor",
                     *kMergeSize = "clip.vision.spatial_merge_size";

// ---- Qwen

std::string refused_of_pairs(const VisionSpec& vision) {
  constexpr int64_t kFrames = 2, kSide = 2;
  if (vision.patches.frames != kFrames)
    return fmt::format("patches of {} frames", vision.patches.frames);
  if (vision.merger.side != kSide)
    return fmt::format("squares of {0} x {0} patches", vision.merger.side);
  return {};
}

/// Every how many layers one sees the whole image; 0: not at equal distances.
int64_t distance_of_full_layers(const VisionSpec& vision) {
  if (vision.full_layers.empty()) return 0;
  const int64_t distance = vision.full_layers[0] + 1;
  std::vector<int64_t> layers;
  for (int64_t layer = distance - 1; layer < vision.num_layers; layer += distance)
    layers.push_back(layer);
  return layers == vision.full_layers ? distance : 0;
}

std::string refused_of_windows(const VisionSpec& vision) {
  constexpr int64_t kWindow = 112;
  const int64_t cell = vision.merger.side * vision.patches.side;
  if (vision.window_side != kWindow / cell)
    return fmt::format("windows of {} pixels (its own have {})", vision.window_side * cell,
                       kWindow);
  if (distance_of_full_layers(vision) == 0)
    return "layers with full attention that are not every n-th one";
  return refused_of_pairs(vision);
}

void describe_qwen2_5(const VisionSpec& vision, const MmprojImages& /*images*/,
                      ordered_json& metadata) {
  metadata["clip.vision.n_wa_pattern"] = distance_of_full_layers(vision);
}

void describe_qwen3(const VisionSpec& vision, const MmprojImages& /*images*/,
                    ordered_json& metadata) {
  metadata[kMergeSize] = vision.merger.side;
  json taps = json::array();
  for (int64_t layer = 0; layer < vision.num_layers; ++layer)
    taps.push_back(std::find(vision.deepstack_layers.begin(), vision.deepstack_layers.end(),
                             layer) != vision.deepstack_layers.end());
  metadata["clip.vision.is_deepstack_layers"] = taps;
}

// ---- Gemma

void describe_gemma3(const VisionSpec& vision, const MmprojImages& /*images*/,
                     ordered_json& metadata) {
  constexpr int64_t kUsual = 4;
  if (vision.merger.side != kUsual) metadata[kScale] = vision.merger.side;
}

void describe_gemma4(const VisionSpec& vision, const MmprojImages& /*images*/,
                     ordered_json& metadata) {
  constexpr int64_t kUsual = 3;
  if (vision.merger.side != kUsual) metadata[kScale] = vision.merger.side;
}

// ---- Tiles

void describe_idefics3(const VisionSpec& vision, const MmprojImages& images,
                       ordered_json& metadata) {
  metadata[kScale] = vision.merger.side;
  metadata["clip.vision.preproc_image_size"] =
      images.longest_edge > 0 ? images.longest_edge : vision.image_size;
}

/// llama.cpp goes by these sizes.
bool is_6b_vit(const VisionSpec& vision) {
  constexpr int64_t kHidden = 3200, kLayers = 45;
  return vision.hidden_size == kHidden && vision.num_layers == kLayers;
}

std::string refused_of_internvl(const VisionSpec& vision) {
  const bool is_rms = vision.layer.attention_in.kind != TowerNormKind::kLayerNorm;
  if (is_rms != is_6b_vit(vision))
    return fmt::format("a tower of {} layers and width {} with {}", vision.num_layers,
                       vision.hidden_size, is_rms ? "RMS norms" : "layer norms");
  if (vision.positions == TowerPositions::kNone) return "a tower without positions";
  return {};
}

void describe_internvl(const VisionSpec& vision, const MmprojImages& images,
                       ordered_json& metadata) {
  const MmprojImages usual;
  metadata[kScale] = vision.merger.side;
  if (images.min_tiles != usual.min_tiles)
    metadata["clip.vision.preproc_min_tiles"] = images.min_tiles;
  if (images.max_tiles != usual.max_tiles)
    metadata["clip.vision.preproc_max_tiles"] = images.max_tiles;
}

// ---- LLaVA and Pixtral

std::string refused_of_llava(const VisionSpec& vision) {
  if (!vision.class_token.empty() && !vision.drops_class_token)
    return "features with those of the class token";
  for (const Merger::Step& step : vision.merger.steps)
    if (!step.linear.bias) return "projectors without biases";
  return {};
}

/// Without this key llama.cpp leaves out one more layer.
void describe_llava(const VisionSpec& vision, const MmprojImages& /*images*/,
                    ordered_json& metadata) {
  metadata["clip.has_llava_projector"] = true;
  metadata["clip.vision.feature_layer"] = json::array({vision.num_used_layers});
}

void describe_pixtral(const VisionSpec& vision, const MmprojImages& /*images*/,
                      ordered_json& metadata) {
  if (vision.merger.merge != PatchMerge::kNone) metadata[kMergeSize] = vision.merger.side;
}

constexpr double kUsualTheta = 10000, kGemma4Theta = 100;

const std::vector<ProjectorRow>& projectors() {
  static const std::vector<ProjectorRow> rows = {
      {.type = "qwen2.5vl_merger",
       .models = {"qwen2_5_vl"},
       .before = "v.post_ln",
       .steps = {"mm.0", "mm.2"},
       .splits_qkv = true,
       .rope_theta = kUsualTheta,
       .refused = refused_of_windows,
       .describe = describe_qwen2_5},
      {.type = "qwen3vl_merger",
       .models = {"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"},
       .before = "v.post_ln",
       .steps = {"mm.0", "mm.2"},
       .rope_theta = kUsualTheta,
       .refused = refused_of_pairs,
       .describe = describe_qwen3},
      {.type = "gemma3",
       .models = {"gemma3"},
       .after = "mm.soft_emb_norm",
       .steps = {"mm.input_projection"},
       .patches = MmprojType::kF32,
       .describe = describe_gemma3},
      {.type = "gemma4v",
       .models = {"gemma4"},
       .type_key = "clip.vision.projector_type",
       .steps = {"mm.input_projection"},
       .rope_theta = kGemma4Theta,
       .describe = describe_gemma4},
      {.type = "idefics3",
       .models = {"idefics3", "smolvlm"},
       .steps = {"mm.model.fc"},
       .patches = MmprojType::kF32,
       .describe = describe_idefics3},
      {.type = "internvl",
       .models = {"internvl"},
       .after = "mm.model.mlp.0",
       .steps = {"mm.model.mlp.1", "mm.model.mlp.3"},
       .refused = refused_of_internvl,
       .describe = describe_internvl},
      {.type = "pixtral",
       .models = {"mistral3"},
       .of_pixtral = true,
       .before = "mm.input_norm",
       .steps = {"mm.patch_merger", "mm.1", "mm.2"},
       .rope_theta = kUsualTheta,
       .describe = describe_pixtral},
      {.type = "pixtral",
       .models = {"llava"},
       .of_pixtral = true,
       .steps = {"mm.1", "mm.2"},
       .rope_theta = kUsualTheta,
       .describe = describe_pixtral},
      {.type = "mlp",
       .models = {"llava"},
       .steps = {"mm.0", "mm.2"},
       .refused = refused_of_llava,
       .describe = describe_llava},
  };
  return rows;
}

const ProjectorRow* projector_of(const VisionSpec& vision) {
  const bool is_pixtral = vision.rope == TowerRope::kAlternating;
  for (const ProjectorRow& row : projectors())
    if (row.models.contains(vision.model_type) && row.of_pixtral == is_pixtral) return &row;
  return nullptr;
}

std::string refused_by(const ProjectorRow& row, const VisionSpec& vision) {
  if (row.rope_theta != 0 && vision.rope_theta != row.rope_theta)
    return fmt::format("rotary positions of a tower with the base {} (its own is {})",
                       vision.rope_theta, row.rope_theta);
  if (vision.head_dim * vision.num_heads != vision.hidden_size)
    return fmt::format("{} heads of {} channels in a tower of width {}", vision.num_heads,
                       vision.head_dim, vision.hidden_size);
  if (vision.post_norm.exists() && vision.uses_post_norm && row.before == "v.post_ln")
    return "a norm after the tower's last layer";
  return row.refused != nullptr ? row.refused(vision) : std::string();
}

// ---- Metadata

/// The pixels of a side for which the tower's positions were made.
int64_t image_size_of(const VisionSpec& vision, const MmprojImages& images) {
  if (vision.image_size > 0) return vision.image_size;
  if (images.image_size > 0) return images.image_size;
  if (vision.positions == TowerPositions::kInterpolated) {
    int64_t side = 1;
    while (side * side < vision.position_rows) ++side;
    return side * vision.patches.side;
  }
  // What the converter writes for towers of images of any size; only towers with one size read it.
  constexpr int64_t kQwen = 560, kGemma4 = 224, kPixtral = 1024;
  if (vision.rope == TowerRope::kHalves) return kQwen;
  return vision.rope == TowerRope::kAxes ? kGemma4 : kPixtral;
}

void describe_activation(const VisionSpec& vision, ordered_json& metadata) {
  switch (vision.activation) {
    case TowerActivation::kSilu:
      metadata["clip.use_silu"] = true;
      break;
    case TowerActivation::kGelu:
    case TowerActivation::kGeluTanh:
      metadata["clip.use_gelu"] = true;
      break;
    case TowerActivation::kQuickGelu:
      break;  // what llama.cpp does without either key
  }
}

ordered_json metadata_of(const ProjectorRow& row, const ArchSpec& arch,
                         const MmprojImages& images) {
  const VisionSpec& vision = *arch.vision;
  ordered_json metadata;
  metadata["clip.has_vision_encoder"] = true;
  metadata[std::string(row.type_key)] = row.type;
  metadata["clip.vision.projection_dim"] = arch.hidden_size;
  metadata["clip.vision.image_size"] = image_size_of(vision, images);
  metadata["clip.vision.patch_size"] = vision.patches.side;
  metadata["clip.vision.embedding_length"] = vision.hidden_size;
  metadata["clip.vision.feed_forward_length"] = vision.intermediate_size;
  metadata["clip.vision.block_count"] = vision.num_used_layers;
  metadata["clip.vision.attention.head_count"] = vision.num_heads;
  metadata["clip.vision.image_mean"] = images.mean;
  metadata["clip.vision.image_std"] = images.std;
  metadata["clip.vision.attention.layer_norm_epsilon"] = vision.layer.attention_in.eps;
  describe_activation(vision, metadata);
  if (row.describe != nullptr) row.describe(vision, images, metadata);
  return metadata;
}

// ---- Names

/// For each module of the image side, or tensor without ".weight" and ".bias", its name in the file.
using Names = std::map<std::string, std::string>;

void add_named(Names& names, const std::string& module, const std::string& name) {
  if (!module.empty()) names[module] = name;
}

void add_layer_names(const VisionSpec& vision, int64_t number, Names& names) {
  const TowerLayer& layer = vision.layer;
  const std::string prefix = fmt::format("{}{}.", vision.layers, number),
                    block = fmt::format("v.blk.{}.", number);
  const auto add = [&](const std::string& module, std::string_view name) {
    if (!module.empty()) names[prefix + module] = block + std::string(name);
  };
  const auto add_linear = [&](const TowerLinear& linear, std::string_view name) {
    add(linear.module, name);
    add(linear.bounds, name);
  };
  add(layer.attention_in.module, "ln1");
  add(layer.attention_out.module, "attn_post_norm");
  add(layer.mlp_in.module, "ln2");
  add(layer.mlp_out.module, "ffn_post_norm");
  add(layer.query.module, "attn_q_norm");
  add(layer.key.module, "attn_k_norm");
  add(layer.attention_scale, "ls1");
  add(layer.mlp_scale, "ls2");
  if (layer.qkv.size() == 1) {
    add_linear(layer.qkv[0], "attn_qkv");
  } else {
    for (size_t i = 0; i < layer.qkv.size(); ++i)
      add_linear(layer.qkv[i], std::array{"attn_q", "attn_k", "attn_v"}.at(i));
  }
  add_linear(layer.output, "attn_out");
  add_linear(layer.up.back(), "ffn_up");
  if (layer.up.size() > 1) add_linear(layer.up.front(), "ffn_gate");
  add_linear(layer.down, "ffn_down");
}

void add_deepstack_names(const VisionSpec& vision, Names& names) {
  for (size_t k = 0; k < vision.deepstack.size(); ++k) {
    const Merger& merger = vision.deepstack[k];
    const std::string prefix = fmt::format("v.deepstack.{}.", vision.deepstack_layers[k]);
    add_named(names, merger.after.module, prefix + "norm");
    for (size_t i = 0; i < merger.steps.size(); ++i)
      names[merger.steps[i].linear.module] = fmt::format("{}fc{}", prefix, i + 1);
  }
}

Names names_of(const ProjectorRow& row, const VisionSpec& vision) {
  Names names;
  names[vision.patches.module] = "v.patch_embd";
  add_named(names, vision.class_token, "v.class_embd");
  add_named(names, vision.position_table, "v.position_embd");
  add_named(names, vision.pre_norm.module, "v.pre_ln");
  add_named(names, vision.post_norm.module, "v.post_ln");
  for (int64_t layer = 0; layer < vision.num_used_layers; ++layer)
    add_layer_names(vision, layer, names);
  add_deepstack_names(vision, names);
  const Merger& merger = vision.merger;
  add_named(names, merger.before.module, std::string(row.before));
  add_named(names, merger.after.module, std::string(row.after));
  add_named(names, merger.std_bias, "v.std_bias");
  add_named(names, merger.std_scale, "v.std_scale");
  SFTRUN_CHECK_EQ(merger.steps.size(), row.steps.size());
  for (size_t i = 0; i < merger.steps.size(); ++i)
    names[merger.steps[i].linear.module] = *(row.steps.begin() + i);
  return names;
}

/// Tensors that are not named like a module's get ".weight", but for those that are vectors in llama.cpp's graph.
std::string name_in_file(const Names& names, const std::string& tensor) {
  const auto whole = names.find(tensor);
  if (whole != names.end()) {
    const bool is_vector = whole->second == "v.class_embd" || whole->second.starts_with("v.std_");
    return is_vector ? whole->second : whole->second + ".weight";
  }
  const size_t dot = tensor.rfind('.');
  const auto module = names.find(tensor.substr(0, dot));
  SFTRUN_CHECK(module != names.end());
  return module->second + tensor.substr(dot);
}

// ---- Tensors

bool is_of_qk(const VisionSpec& vision, const TensorSpec& spec) {
  const std::vector<TowerLinear>& qkv = vision.layer.qkv;
  return qkv.size() == 3 && (spec.name.find("." + qkv[0].module + ".") != std::string::npos ||
                             spec.name.find("." + qkv[1].module + ".") != std::string::npos);
}

MmprojType type_of(const ProjectorRow& row, const MmprojTensor& tensor) {
  const std::string& name = tensor.name;
  if (tensor.shape.size() <= 1 || name.ends_with("_norm.weight")) return MmprojType::kF32;
  if (name == "v.class_embd" || name.starts_with("v.position_embd")) return MmprojType::kF32;
  if (name.starts_with("v.patch_embd.")) return row.patches;
  if (name == "mm.patch_merger.weight") return MmprojType::kKernel;
  const bool is_gemma3 = row.type == "gemma3" && name == "mm.input_projection.weight";
  return is_gemma3 ? MmprojType::kF16 : MmprojType::kFiles;
}

/// Collects the tensors of the file.
class MmprojTensors {
 public:
  MmprojTensors(const ProjectorRow& row, const VisionSpec& vision)
      : row_(row), vision_(vision), names_(names_of(row, vision)) {}

  void add(const TensorSpec& spec) {
    MmprojTensor tensor{.name = name_in_file(names_, spec.name),
                        .source = spec.name,
                        .shape = spec.shape_in_files(),
                        .adds_one = spec.adds_one};
    if (tensor.shape.empty()) tensor.shape = {1};  // a bound
    const bool is_patches = spec.name == vision_.patches.module + ".weight";
    if (is_patches && vision_.patches.has_frames_axis) return add_frames(std::move(tensor));
    if (row_.splits_qkv &&
        spec.name.find("." + vision_.layer.qkv[0].module + ".") != std::string::npos)
      return add_thirds(std::move(tensor));
    if (is_patches && vision_.patches.order == PatchOrder::kChannelsLast) {
      const int64_t side = vision_.patches.side;
      tensor.form = MmprojForm::kPlanes;
      tensor.shape = {vision_.hidden_size, vision_.patches.channels, side, side};
    }
    if (row_.of_pixtral && is_of_qk(vision_, spec)) tensor.form = MmprojForm::kInterleaved;
    if (spec.layout.reorders()) tensor.form = MmprojForm::kTransposed;
    push(std::move(tensor));
  }

  void add_image_break(const std::string& embedding, int64_t hidden_size, int64_t id) {
    push({.name = "v.token_embd.img_break",
          .source = embedding,
          .shape = {hidden_size},
          .form = MmprojForm::kRow,
          .part = id});
  }

  std::vector<MmprojTensor> take() { return std::move(tensors_); }

 private:
  void push(MmprojTensor tensor) {
    tensor.type = type_of(row_, tensor);
    tensors_.push_back(std::move(tensor));
  }

  /// A convolution over two frames is the sum of two.
  void add_frames(MmprojTensor tensor) {
    constexpr int64_t kFramesAxis = 2;
    tensor.shape.erase(tensor.shape.begin() + kFramesAxis);
    tensor.form = MmprojForm::kFrame;
    push(tensor);
    tensor.part = 1;
    tensor.name += ".1";
    push(std::move(tensor));
  }

  void add_thirds(MmprojTensor tensor) {
    constexpr std::string_view kFused = "attn_qkv";
    const size_t at = tensor.name.find(kFused);
    tensor.shape[0] /= 3;
    tensor.form = MmprojForm::kThird;
    for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
      MmprojTensor third = tensor;
      third.name.replace(at, kFused.size(), name);
      push(std::move(third));
      ++tensor.part;
    }
  }

  const ProjectorRow& row_;
  const VisionSpec& vision_;
  Names names_;
  std::vector<MmprojTensor> tensors_;
};

}  // namespace

bool has_image_break(const ArchSpec& arch) {
  return arch.vision && arch.vision->rope == TowerRope::kAlternating;
}

Mmproj describe_mmproj(const ArchSpec& arch, const MmprojImages& images,
                       std::optional<int64_t> image_break) {
  const VisionSpec& vision = *arch.vision;
  const ProjectorRow* row = projector_of(vision);
  if (row == nullptr) return {.refused = "the image side of " + vision.model_type};
  Mmproj file{.refused = refused_by(*row, vision)};
  if (has_image_break(arch) && !image_break)
    file.refused = fmt::format("images without the token {}", kImageBreak);
  if (!file.refused.empty()) return file;
  file.metadata = metadata_of(*row, arch, images);
  MmprojTensors tensors(*row, vision);
  for (const TensorSpec& spec : vision_tensor_specs(vision, arch.hidden_size))
    if (is_read(vision, spec)) tensors.add(spec);
  if (has_image_break(arch))
    tensors.add_image_break(embedding_module(arch) + ".weight", arch.hidden_size, *image_break);
  file.tensors = tensors.take();
  return file;
}

}  // namespace sftrun::spec
