#include "sftrun/spec/vision_tensors.h"

#include <algorithm>
#include <cctype>

#include "sftrun/core/error.h"
#include "sftrun/spec/feature_projectors.h"

namespace sftrun::spec {
namespace {

bool is_projectors(const VisionSpec& vision, std::string_view name) {
  for (const std::string& prefix : vision.projector)
    if (name.starts_with(prefix)) return true;
  return false;
}

/// Collects tensors of one unit.
class VisionTensors {
 public:
  VisionTensors(const VisionSpec& vision, std::vector<TensorSpec>& specs)
      : vision_(vision), specs_(specs) {}

  void begin(VisionUnit unit, int64_t layer, std::string prefix) {
    unit_ = unit;
    layer_ = layer;
    prefix_ = std::move(prefix);
  }

  TensorSpec& add(const std::string& name, std::vector<int64_t> shape, TensorRole role) {
    TensorSpec& spec = specs_.emplace_back();
    spec.name = prefix_ + name;
    spec.shape = std::move(shape);
    spec.role = role;
    spec.layer = layer_;
    spec.adds_one = false;
    spec.part = is_projectors(vision_, spec.name) ? ModelPart::kProjector : ModelPart::kVision;
    spec.unit = unit_;
    return spec;
  }

  void add_norm(const TowerNorm& norm) {
    if (!norm.exists() || norm.kind == TowerNormKind::kRmsPlain) return;
    add(norm.module + ".weight", {norm.size}, TensorRole::kNorm).adds_one =
        norm.kind == TowerNormKind::kRmsAddsOne;
    if (norm.kind == TowerNormKind::kLayerNorm)
      add(norm.module + ".bias", {norm.size}, TensorRole::kBias);
  }

  void add_linear(const TowerLinear& linear) {
    if (!linear.exists()) return;
    add(linear.module + ".weight", {linear.out_features, linear.in_features}, TensorRole::kLinear);
    if (linear.bias) add(linear.module + ".bias", {linear.out_features}, TensorRole::kBias);
    if (!linear.clamps) return;
    for (const char* bound : {".input_min", ".input_max", ".output_min", ".output_max"})
      add(linear.bounds + bound, {}, TensorRole::kBuffer);
  }

  void add_transposed(const TowerLinear& linear) {
    const int64_t in = linear.in_features, out = linear.out_features;
    add(linear.module, {out, in}, TensorRole::kLinear).layout = {
        {1, out, in}, {0, 2, 1}, {in, out}};
  }

 private:
  const VisionSpec& vision_;
  std::vector<TensorSpec>& specs_;
  VisionUnit unit_ = VisionUnit::kEmbedding;
  int64_t layer_ = -1;
  std::string prefix_;
};

void add_patches(const PatchEmbedding& patches, int64_t hidden, VisionTensors& tensors) {
  TensorSpec& kernel =
      tensors.add(patches.module + ".weight", {hidden, patches.values()},
                  patches.is_convolution ? TensorRole::kOther : TensorRole::kLinear);
  if (patches.is_convolution) {
    kernel.layout.shape = {hidden, patches.channels};
    if (patches.has_frames_axis) kernel.layout.shape.push_back(patches.frames);
    kernel.layout.shape.insert(kernel.layout.shape.end(), {patches.side, patches.side});
  }
  if (patches.bias) tensors.add(patches.module + ".bias", {hidden}, TensorRole::kBias);
}

void add_positions(const VisionSpec& vision, VisionTensors& tensors) {
  if (vision.positions == TowerPositions::kNone) return;
  const int64_t hidden = vision.hidden_size, rows = vision.position_rows;
  std::vector<int64_t> shape = {rows, hidden};
  if (vision.positions == TowerPositions::kAxes) shape.insert(shape.begin(), 2);
  TensorSpec& table = tensors.add(vision.position_table, shape, TensorRole::kEmbedding);
  if (vision.position_table_in_1_rows) table.layout.shape = {1, rows, hidden};
}

void add_embedding(const VisionSpec& vision, VisionTensors& tensors) {
  tensors.begin(VisionUnit::kEmbedding, -1, "");
  add_patches(vision.patches, vision.hidden_size, tensors);
  if (!vision.class_token.empty()) {
    TensorSpec& token = tensors.add(vision.class_token, {vision.hidden_size}, TensorRole::kOther);
    if (vision.class_token_in_1_1_hidden) token.layout.shape = {1, 1, vision.hidden_size};
  }
  add_positions(vision, tensors);
  tensors.add_norm(vision.pre_norm);
}

void add_tower_layer(const VisionSpec& vision, int64_t number, VisionTensors& tensors) {
  const TowerLayer& layer = vision.layer;
  tensors.begin(VisionUnit::kLayer, number, fmt::format("{}{}.", vision.layers, number));
  for (const TowerNorm* norm : {&layer.attention_in, &layer.attention_out, &layer.mlp_in,
                                &layer.mlp_out, &layer.query, &layer.key, &layer.value})
    tensors.add_norm(*norm);
  for (const std::string& scale : {layer.attention_scale, layer.mlp_scale})
    if (!scale.empty()) tensors.add(scale, {vision.hidden_size}, TensorRole::kOther);
  for (const TowerLinear& linear : layer.qkv) tensors.add_linear(linear);
  tensors.add_linear(layer.output);
  for (const TowerLinear& linear : layer.up) tensors.add_linear(linear);
  tensors.add_linear(layer.down);
}

void add_merger(const Merger& merger, int64_t number, VisionTensors& tensors) {
  tensors.begin(VisionUnit::kProjector, number, "");
  tensors.add_norm(merger.before);
  tensors.add_norm(merger.after);
  for (size_t i = 0; i < merger.steps.size(); ++i) {
    if (i == 0 && merger.is_transposed_parameter)
      tensors.add_transposed(merger.steps[i].linear);
    else
      tensors.add_linear(merger.steps[i].linear);
  }
}

void add_output(const VisionSpec& vision, VisionTensors& tensors) {
  tensors.begin(VisionUnit::kOutput, -1, "");
  tensors.add_norm(vision.post_norm);
  for (const std::string& name : {vision.merger.std_bias, vision.merger.std_scale})
    if (!name.empty()) tensors.add(name, {vision.hidden_size}, TensorRole::kBuffer);
}

}  // namespace

std::vector<TensorSpec> vision_tensor_specs(const VisionSpec& vision, int64_t text_hidden_size) {
  std::vector<TensorSpec> specs;
  VisionTensors tensors(vision, specs);
  add_embedding(vision, tensors);
  for (int64_t layer = 0; layer < vision.num_layers; ++layer)
    add_tower_layer(vision, layer, tensors);
  add_output(vision, tensors);
  for (size_t k = 0; k < vision.deepstack.size(); ++k)
    add_merger(vision.deepstack[k], static_cast<int64_t>(k), tensors);
  add_merger(vision.merger, -1, tensors);
  if (!vision.newline.empty()) tensors.add(vision.newline, {text_hidden_size}, TensorRole::kOther);
  return specs;
}

std::optional<ModelPart> part_of(const ArchSpec& arch, std::string_view name) {
  if (name.starts_with(arch.prefix) || name.starts_with("lm_head.")) return ModelPart::kLanguage;
  if (is_of_projectors(arch, name)) return ModelPart::kProjector;
  if (!arch.vision) return std::nullopt;
  if (is_projectors(*arch.vision, name)) return ModelPart::kProjector;
  if (name.starts_with(arch.vision->prefix)) return ModelPart::kVision;
  return std::nullopt;
}

bool is_read(const VisionSpec& vision, const TensorSpec& tensor) {
  if (tensor.unit == VisionUnit::kLayer) return tensor.layer < vision.num_used_layers;
  const bool is_post_norm = tensor.unit == VisionUnit::kOutput && vision.post_norm.exists() &&
                            tensor.name.starts_with(vision.post_norm.module + ".");
  return !is_post_norm || vision.uses_post_norm;
}

std::vector<TensorSpec> vision_linears(const ArchSpec& arch, const TrainedParts& parts) {
  std::vector<TensorSpec> linears;
  if (!arch.vision || !parts.has_image_side()) return linears;
  for (TensorSpec& tensor : vision_tensor_specs(*arch.vision, arch.hidden_size)) {
    const bool is_linear = tensor.role == TensorRole::kLinear && tensor.name.ends_with(".weight");
    if (is_linear && parts.has(tensor.part) && is_read(*arch.vision, tensor))
      linears.push_back(std::move(tensor));
  }
  return linears;
}

namespace {

/// Splits the tensors of a model into those that a part trains and all others.
struct PartNames {
  std::vector<std::string> trained, others;

  PartNames(const ArchSpec& arch, ModelPart part) : others({arch.prefix}) {
    for (const std::string& unused : arch.vision->unused)
      if (unused.ends_with('.')) others.push_back(unused);  // no buffers of older versions
    for (const TensorSpec& tensor : vision_tensor_specs(*arch.vision, arch.hidden_size)) {
      const bool trains = tensor.part == part && tensor.role != TensorRole::kBuffer &&
                          is_read(*arch.vision, tensor);
      (trains ? trained : others).push_back(tensor.name);
    }
  }
  bool is_module_of_others(const std::string& prefix) const {
    return std::any_of(others.begin(), others.end(),
                       [&](const std::string& name) { return name.starts_with(prefix); });
  }
  /// Its children have numbers.
  bool is_list(const std::string& prefix) const {
    return std::any_of(trained.begin(), trained.end(), [&](const std::string& name) {
      return name.starts_with(prefix) && name.size() > prefix.size() &&
             std::isdigit(static_cast<unsigned char>(name[prefix.size()])) != 0;
    });
  }
};

/// The outermost module of the part around a tensor, with a dot at its end; empty: there is none.
std::string module_around(const std::string& tensor, const PartNames& names) {
  for (size_t dot = tensor.find('.'); dot != std::string::npos; dot = tensor.find('.', dot + 1)) {
    std::string prefix = tensor.substr(0, dot + 1);
    if (prefix != "model." && !names.is_module_of_others(prefix) && !names.is_list(prefix))
      return prefix;
  }
  return {};
}

}  // namespace

std::vector<std::string> modules_of(const ArchSpec& arch, ModelPart part) {
  constexpr std::string_view kRoot = "model.";
  SFTRUN_CHECK(arch.vision.has_value() && part != ModelPart::kLanguage);
  const PartNames names(arch, part);
  std::vector<std::string> modules;
  for (const std::string& tensor : names.trained) {
    if (tensor == arch.vision->newline) continue;  // PEFT saves no parameter of the whole model
    std::string module = module_around(tensor, names);
    if (module.empty()) {
      throw ConfigError(
          fmt::format("{} cannot be trained in full beside LoRA: its module has other tensors, too",
                      tensor),
          "tuning.train_parts", "train the part with LoRA, or set tuning.mode to full");
    }
    module.pop_back();
    if (module.starts_with(kRoot)) module.erase(0, kRoot.size());
    if (std::find(modules.begin(), modules.end(), module) == modules.end())
      modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace sftrun::spec
