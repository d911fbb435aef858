#include "sftrun/weights/adapter_file.h"

#include <algorithm>
#include <cmath>

#include "convert.h"
#include "json_text.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"
#include "shape_math.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight", kWeight = ".weight",
                           kBaseLayer = ".base_layer";

class AdapterReader {
 public:
  AdapterReader(const fs::path& path, const AdapterConfig& config, const spec::ArchSpec& arch)
      : where_(path.string()), config_(config), file_(path) {
    for (spec::TensorSpec& spec : spec::tensor_specs(arch)) specs_[spec.name] = std::move(spec);
    // A tied head may still be saved, or adapted, on its own.
    specs_.try_emplace("lm_head.weight",
                       spec::TensorSpec{.name = "lm_head.weight",
                                        .shape = {arch.vocab_size, arch.hidden_size},
                                        .role = spec::TensorRole::kHead});
  }

  AdapterTensors read() {
    AdapterTensors result;
    for (const SafetensorsEntry& entry : file_.entries()) read_entry(entry, result);
    for (const auto& [module, pair] : result.lora) {
      if (pair.a.empty()) fail(lora_b_name(module), "has no lora_A beside it");
      if (pair.b.empty()) fail(lora_a_name(module), "has no lora_B beside it");
    }
    if (result.lora.empty() && result.saved.empty())
      throw DataError("the adapter holds no tensors", where_);
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& tensor, const std::string& what,
                         const std::string& fix = {}) const {
    throw DataError(fmt::format("tensor `{}` {}", tensor, what), where_, fix);
  }

  void read_entry(const SafetensorsEntry& entry, AdapterTensors& result) const {
    if (!entry.name.starts_with(kPrefix))
      fail(entry.name, "is not named as PEFT names an adapter's");
    const std::string name = entry.name.substr(kPrefix.size());
    if (read_experts(entry, name, result)) return;
    if (name.ends_with(kA)) {
      const std::string module = name.substr(0, name.size() - kA.size());
      const spec::TensorSpec& base = base_of(entry, module);
      LoraPair& pair = pair_of(result, module, base);
      pair.a = values(entry, {config_.r, base.shape[1]});
    } else if (name.ends_with(kB)) {
      const std::string module = name.substr(0, name.size() - kB.size());
      const spec::TensorSpec& base = base_of(entry, module);
      LoraPair& pair = pair_of(result, module, base);
      pair.b = values(entry, {base.shape[0], config_.r});
    } else if (name.find(".lora_") != std::string::npos) {
      fail(entry.name, "belongs to a kind of adapter that is not supported");
    } else {
      result.saved[name] = values(entry, saved_shape(entry, name));
    }
  }

  /// The experts' tensor that a module of PEFT's stands for; null: none of this model's.
  const spec::TensorSpec* experts_of(const std::string& module) const {
    const std::string experts = module.substr(
        0, module.ends_with(kBaseLayer) ? module.size() - kBaseLayer.size() : module.size());
    const std::string gate_up = experts + ".gate_up_proj", down = experts + ".down_proj";
    const bool both = is_target(gate_up) && is_target(down);
    for (const std::string& parameter : {gate_up, down}) {
      const auto found = specs_.find(parameter);
      const bool is_experts =
          found != specs_.end() && found->second.role == spec::TensorRole::kExperts;
      if (is_experts && is_target(parameter) && peft_expert_module(parameter, both) == module)
        return &found->second;
    }
    return nullptr;
  }
  bool is_target(const std::string& parameter) const {
    return ends_with_any(parameter, config_.target_parameters);
  }
  static bool ends_with_any(const std::string& name, const std::vector<std::string>& endings) {
    return std::any_of(endings.begin(), endings.end(),
                       [&](const std::string& ending) { return ends_with_name(name, ending); });
  }

  bool read_experts(const SafetensorsEntry& entry, const std::string& name,
                    AdapterTensors& result) const {
    const bool is_a = name.ends_with(kA), is_b = name.ends_with(kB);
    if (!is_a && !is_b) return false;
    const spec::TensorSpec* spec = experts_of(name.substr(0, name.size() - kA.size()));
    if (spec == nullptr) return false;
    LoraPair& pair = result.lora[spec->name];
    pair.num_experts = spec->shape[0];
    pair.out_features = spec->shape[1];
    pair.in_features = spec->shape[2];
    const int64_t ranks = pair.num_experts * config_.r;
    if (is_a)
      pair.a = values(entry, {ranks, pair.in_features});
    else
      pair.b = values(entry, {pair.out_features, ranks});
    return true;
  }

  static LoraPair& pair_of(AdapterTensors& result, const std::string& module,
                           const spec::TensorSpec& base) {
    LoraPair& pair = result.lora[module];
    pair.out_features = base.shape[0];
    pair.in_features = base.shape[1];
    return pair;
  }

  /// The weight that a LoRA pair stands beside.
  const spec::TensorSpec& base_of(const SafetensorsEntry& entry, const std::string& module) const {
    const auto found = specs_.find(module + std::string(kWeight));
    const bool linear = found != specs_.end() && (found->second.role == spec::TensorRole::kLinear ||
                                                  found->second.role == spec::TensorRole::kHead);
    if (!linear) fail_no_module(entry, module);
    return found->second;
  }

  [[noreturn]] void fail_no_module(const SafetensorsEntry& entry, const std::string& module) const {
    std::vector<std::string> modules;
    for (const auto& [name, spec] : specs_) {
      if (name.ends_with(kWeight) && spec.shape.size() == 2)
        modules.push_back(name.substr(0, name.size() - kWeight.size()));
    }
    const std::string near = nearest(module, modules);
    fail(entry.name, fmt::format("is for `{}`, which is no linear layer of this model", module),
         near.empty()
             ? "the adapter was made for another model"
             : fmt::format("the nearest is `{}`: the adapter was made for another model", near));
  }

  std::vector<int64_t> saved_shape(const SafetensorsEntry& entry, const std::string& name) const {
    const auto found = specs_.find(name);
    const std::string module = name.substr(0, name.rfind('.'));
    const bool listed = ends_with_any(module, config_.modules_to_save);
    if (found == specs_.end() || !listed)
      fail(entry.name, "is neither LoRA's nor of one of `modules_to_save`");
    return found->second.shape;
  }

  std::vector<float> values(const SafetensorsEntry& entry,
                            const std::vector<int64_t>& shape) const {
    if (entry.shape != shape) {
      const std::string because = entry.name.find(".lora_") == std::string::npos
                                      ? ""
                                      : fmt::format(" with r {}", config_.r);
      fail(entry.name,
           fmt::format("has the shape {}; the model wants {}{}", shape_text(entry.shape),
                       shape_text(shape), because),
           "adapter_config.json, adapter_model.safetensors and the model must belong together");
    }
    const std::optional<DType> dtype = float_dtype(entry.dtype);
    if (!dtype)
      fail(entry.name, fmt::format("is stored as {}, which is not supported", entry.dtype));
    std::vector<float> result(static_cast<size_t>(*checked_numel(shape)));
    convert(*dtype, entry.bytes.data(), DType::kF32, reinterpret_cast<std::byte*>(result.data()),
            static_cast<int64_t>(result.size()));
    if (!std::all_of(result.begin(), result.end(),
                     [](float value) { return std::isfinite(value); })) {
      fail(entry.name, "holds values that are not finite",
           "the training that wrote it diverged: use an earlier checkpoint");
    }
    return result;
  }

  std::string where_;
  const AdapterConfig& config_;
  SafetensorsFile file_;
  std::map<std::string, spec::TensorSpec> specs_;
};

}  // namespace

namespace {

/// Models of two families may have layers of the same names and sizes. Known only where the
/// adapter's base lies on this machine.
void require_same_family(const fs::path& directory, const AdapterConfig& config,
                         const spec::ArchSpec& arch) {
  const fs::path path = fs::path(config.base_model_name_or_path) / "config.json";
  std::error_code ignored;
  if (config.base_model_name_or_path.empty() || !fs::exists(path, ignored)) return;
  spec::ArchSpec base;
  try {
    base = spec::ArchSpec::from_hf_config(parse_json(read_text_file(path), path.string()),
                                          path.string());
  } catch (const Error&) {
    return;  // no model of ours any more, or never one
  }
  // GGUF files call Mistral a llama: without a window it is one.
  const auto is_llama = [](const std::string& family) {
    return family == "llama" || family == "mistral";
  };
  if (base.family == arch.family || (is_llama(base.family) && is_llama(arch.family))) return;
  throw DataError(fmt::format("the adapter was made for a model of the family {} ({}), this one is "
                              "of {}",
                              base.family, config.base_model_name_or_path, arch.family),
                  directory.string(), "give the adapter its own base model");
}

}  // namespace

AdapterTensors load_adapter(const fs::path& directory, const AdapterConfig& config,
                            const spec::ArchSpec& arch) {
  require_same_family(directory, config, arch);
  const fs::path path = directory / "adapter_model.safetensors";
  if (!fs::exists(path)) {
    const bool pickled = fs::exists(directory / "adapter_model.bin");
    throw DataError(
        "no adapter_model.safetensors in this directory", directory.string(),
        pickled ? "adapter_model.bin is not read: save the adapter as safetensors" : "");
  }
  return AdapterReader(path, config, arch).read();
}

void write_adapter(const fs::path& directory, const AdapterConfig& config,
                   const std::vector<TensorToWrite>& tensors) {
  make_directories(directory);
  write_safetensors(directory / "adapter_model.safetensors", tensors);
  write_file_atomically(directory / "adapter_config.json", config.to_json().dump(2) + "\n");
}

}  // namespace sftrun::weights
