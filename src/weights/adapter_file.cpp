#include "sftrun/weights/adapter_file.h"
#include "sftrun/spec/blocks.h"

#include <algorithm>
#include <set>

#include "adapter_modules.h"
#include "adapter_values.h"
#include "expert_adapters.h"
#include "json_text.h"
#include "saved_rows.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/feature_projectors.h"
#include "sftrun/spec/gguf_description.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/spec/vision_tensors.h"
#include "sftrun/weights/fingerprint.h"
#include "shape_math.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIncomplete = "the file is incomplete: copy or save the adapter again";
constexpr const char* kTensorsFile = "adapter_model.safetensors";

/// Reads the tensors of an adapter's file.
class AdapterReader {
 public:
  AdapterReader(const fs::path& path, const AdapterConfig& config, const spec::ArchSpec& arch)
      : values_(path.string()),
        config_(config),
        arch_(arch),
        file_(open_adapter_file(path)),
        specs_(specs_by_name(arch)),
        old_modules_(old_modules(specs_)),
        experts_(values_, config.lora, specs_, old_modules_),
        embedding_(spec::embedding_module(arch)) {
    // A tied head may still have been saved or adapted separately.
    specs_.try_emplace("lm_head.weight",
                       spec::TensorSpec{.name = "lm_head.weight",
                                        .shape = {arch.vocab_size, arch.hidden_size},
                                        .role = spec::TensorRole::kHead});
  }

  AdapterTensors read() {
    AdapterTensors result;
    size_t num_unused = 0;
    for (const SafetensorsEntry& entry : file_.entries()) {
      if (is_of_unused_module(entry))
        ++num_unused;
      else
        read_entry(entry, result);
    }
    if (num_unused > 0)
      log::info("{}: {} of the tower's pooling head left out, which images do not pass",
                values_.where(), counted(num_unused, "tensor"));
    for (const auto& [module, pair] : result.lora) {
      const LoraNames names = pair.of_embedding ? embedding_lora_names(module) : lora_names(module);
      if (pair.a.empty()) values_.fail(names.b, "has no matching lora_A", kIncomplete);
      if (pair.b.empty()) values_.fail(names.a, "has no matching lora_B", kIncomplete);
      if (pair.magnitude.empty() == config_.lora.dora) {
        values_.fail(names.a,
                     config_.lora.dora
                         ? "has no matching lora_magnitude_vector, although `use_dora` is true"
                         : "has a matching lora_magnitude_vector, although `use_dora` is false");
      }
    }
    experts_.require_all();
    if (result.lora.empty() && result.saved.empty())
      throw DataError("the adapter has no tensors", values_.where());
    return result;
  }

 private:
  /// The head that makes one vector of an image, which SigLIP has in some files: the model's features do not pass through it, and get
  /// nothing from its adapter.
  bool is_of_unused_module(const SafetensorsEntry& entry) const {
    if (!arch_.vision || !entry.name.starts_with(kPeftPrefix)) return false;
    const std::string_view name = std::string_view(entry.name).substr(kPeftPrefix.size());
    return std::ranges::any_of(arch_.vision->unused, [&](const std::string& unused) {
      return unused.ends_with('.') && name.starts_with(unused);
    });
  }

  /// A tensor of an adapter whose name is not LoRA's.
  [[noreturn]] void fail_update(const std::string& name) const {
    for (const std::string_view part : {".lora_A.", ".lora_B."}) {
      const size_t at = name.rfind(part);
      if (at == std::string::npos || !name.ends_with(kWeightName)) continue;
      const size_t begin = at + part.size(), end = name.size() - kWeightName.size();
      if (begin >= end) continue;
      values_.fail(
          name,
          fmt::format("has the name of an adapter in it, `{}`",
                      excerpt(name.substr(begin, end - begin))),
          "save the adapter by PEFT's save_pretrained, or rename its tensors to ….lora_A.weight "
          "and ….lora_B.weight");
    }
    values_.fail(
        name, "belongs to an adapter type that is not supported",
        "supported: LoRA, with rank-stabilised scaling (rsLoRA), DoRA and modules_to_save");
  }

  void read_entry(const SafetensorsEntry& entry, AdapterTensors& result) {
    if (!entry.name.starts_with(kPeftPrefix))
      values_.fail(entry.name, "does not have a name of a PEFT adapter tensor");
    const std::string name = entry.name.substr(kPeftPrefix.size());
    const std::string module = current_module(module_of_update(name));
    if (experts_.read(entry, name, result)) return;
    if (read_embedding(entry, name, result) || is_adapted_embedding_or_head(entry, name)) return;
    if (!module.empty()) {
      const spec::TensorSpec& base = base_of(entry, module);
      if (config_.left_out.covers(module))
        values_.fail(entry.name,
                     "is for a module that `exclude_modules` or `layers_to_transform` leaves out",
                     "adapter_config.json and adapter_model.safetensors must belong together");
      // Patterns know a renamed router by its old name.
      const bool is_renamed = module != module_of_update(name);
      LoraPair& pair =
          pair_of(result, module, base,
                  is_renamed ? module_of_update(name) : spec::update_name(config_.lora, module));
      if (name.ends_with(kLoraA))
        pair.a = values_.read(entry, {pair.r, base.shape[1]}, pair.r);
      else if (name.ends_with(kLoraMagnitude))
        pair.magnitude = values_.read(entry, {base.shape[0]});
      else if (!name.ends_with(kLoraB))
        values_.fail(entry.name,
                     "is an adapter tensor of an embedding, but the module is a linear layer");
      else
        pair.b = values_.read(entry, {base.shape[0], pair.r}, pair.r);
    } else if (name.find(".lora_") != std::string::npos) {
      fail_update(entry.name);
    } else {
      const std::string tensor = without_wrapper(name);
      result.saved[tensor] = values_.read(entry, saved_shape(entry, tensor));
    }
  }

  /// Embeddings: A covers the vocabulary, and magnitudes are per channel.
  bool read_embedding(const SafetensorsEntry& entry, const std::string& name,
                      AdapterTensors& result) const {
    if (module_of_update(name) != embedding_) return false;
    const std::vector<int64_t>& table = specs_.at(embedding_ + std::string(kWeightName)).shape;
    LoraPair& pair = result.lora[embedding_];
    pair.of_embedding = true;
    pair.r = config_.lora.r_of(embedding_);
    pair.scale = config_.lora.scale_of(embedding_);
    pair.in_features = table[0];
    pair.out_features = table[1];
    if (name.ends_with(kLoraEmbeddingA))
      pair.a = values_.read(entry, {pair.r, pair.in_features}, pair.r);
    else if (name.ends_with(kLoraEmbeddingB))
      pair.b = values_.read(entry, {pair.out_features, pair.r}, pair.r);
    else if (name.ends_with(kLoraMagnitude))
      pair.magnitude = values_.read(entry, {pair.out_features});
    else
      values_.fail(entry.name,
                   "is an adapter tensor of a linear layer, but the module is an embedding");
    return true;
  }

  /// The base's embedding or head, saved in addition to its adapter: skipped here, see
  /// open_adapter_base.
  bool is_adapted_embedding_or_head(const SafetensorsEntry& entry, const std::string& name) const {
    if (!is_embedding_or_head(name, config_, arch_)) return false;
    const bool is_whole = name.ends_with(kWeightName);
    const std::vector<int64_t> whole = {arch_.vocab_size, arch_.hidden_size};
    if (is_whole) require_not_resized(entry, whole);
    return true;
  }

  void require_not_resized(const SafetensorsEntry& entry, const std::vector<int64_t>& whole) const {
    if (entry.shape == whole) return;
    values_.fail(
        entry.name,
        fmt::format("has the shape {}, but the base's has {}: the vocabulary was resized",
                    shape_text(entry.shape), shape_text(whole)),
        "merge the adapter into its base (sftrun merge, as safetensors or gguf) and use the "
        "merged model");
  }

  /// A state dictionary that was not saved by PEFT contains the wrapper's name, too.
  static std::string without_wrapper(std::string name) {
    for (const std::string wrapper : {".modules_to_save.default", ".modules_to_save"}) {
      const size_t at = name.rfind(wrapper + ".");
      if (at != std::string::npos) return name.erase(at, wrapper.size());
    }
    return name;
  }

  /// The current module name of a router.
  std::string current_module(const std::string& module) const {
    const auto old = old_modules_.find(module);
    if (old == old_modules_.end()) return module;
    const std::string& name = old->second.whole->name;
    return name.ends_with(kWeightName) ? name.substr(0, name.size() - kWeightName.size()) : module;
  }

  /// @param name the name that patterns match
  LoraPair& pair_of(AdapterTensors& result, const std::string& module, const spec::TensorSpec& base,
                    const std::string& name) const {
    LoraPair& pair = result.lora[module];
    pair.r = config_.lora.r_of(name);
    pair.scale = config_.lora.scale_of(name);
    pair.out_features = base.shape[0];
    pair.in_features = base.shape[1];
    return pair;
  }

  /// The weight that a LoRA pair is added to.
  const spec::TensorSpec& base_of(const SafetensorsEntry& entry, const std::string& module) const {
    const auto found = specs_.find(module + std::string(kWeightName));
    const bool linear = found != specs_.end() && (found->second.role == spec::TensorRole::kLinear ||
                                                  found->second.role == spec::TensorRole::kHead);
    if (!linear) fail_no_module(entry, module);
    return found->second;
  }

  [[noreturn]] void fail_no_module(const SafetensorsEntry& entry, const std::string& module) const {
    std::vector<std::string> modules;
    for (const auto& [name, spec] : specs_) {
      if (name.ends_with(kWeightName) && spec.shape.size() == 2)
        modules.push_back(name.substr(0, name.size() - kWeightName.size()));
    }
    const std::string near = nearest(module, modules);
    values_.fail(
        entry.name, fmt::format("is for `{}`, which is not a linear layer of this model", module),
        near.empty()
            ? "the adapter was trained on another model"
            : fmt::format("the nearest is `{}`: the adapter was trained on another model", near));
  }

  std::vector<int64_t> saved_shape(const SafetensorsEntry& entry, const std::string& name) const {
    const auto found = specs_.find(name);
    if (found == specs_.end() || !spec::is_saved(config_.lora.modules_to_save, name))
      values_.fail(entry.name, "is neither a LoRA tensor nor part of `modules_to_save`",
                   spec::is_projector_name(name)
                       ? "copy projectors.json, too: it has the sizes of projectors of features"
                       : "");
    const bool is_end = name == embedding_ + std::string(kWeightName) || name == "lm_head.weight";
    if (is_end && entry.shape.size() == 2 && entry.shape[1] == arch_.hidden_size)
      require_not_resized(entry, found->second.shape);
    return found->second.shape_in_files();
  }

  AdapterValues values_;
  const AdapterConfig& config_;
  const spec::ArchSpec& arch_;
  SafetensorsFile file_;
  std::map<std::string, spec::TensorSpec> specs_;
  std::map<std::string, OldModule> old_modules_;
  ExpertAdapters experts_;
  std::string embedding_;  // module name
};

/// Whether `file` also adapts linear modules that match a target other than single experts and
/// routers: a shared expert, or layers without experts.
bool has_dense_module(const SafetensorsFile& file, const std::string& target,
                      const spec::ArchSpec& arch) {
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
      if (linear.is_router || !ends_with_name(linear.module, target)) continue;
      if (file.find(lora_a_name(spec::name_in_layer(arch, layer, linear.module)))) return true;
    }
  }
  return false;
}

/// The parameters that adapters of old modules in `file` are for, as in `target_parameters`, each
/// with one of those modules.
std::map<std::string, std::string> parameters_of_old_modules(const SafetensorsFile& file,
                                                             const spec::ArchSpec& arch) {
  const std::map<std::string, spec::TensorSpec> specs = specs_by_name(arch);
  const std::map<std::string, OldModule> modules = old_modules(specs);
  std::map<std::string, std::string> parameters;
  for (const SafetensorsEntry& entry : file.entries()) {
    if (!entry.name.starts_with(kPeftPrefix)) continue;
    const std::string module = module_of_update(entry.name.substr(kPeftPrefix.size()));
    const auto old = modules.find(module);
    const std::string name = old != modules.end() ? old->second.whole->name : module + ".weight";
    if (old != modules.end() || module.ends_with(".mlp.gate"))
      parameters.emplace(name.substr(name.rfind("mlp.")), module);
  }
  return parameters;
}

/// Models of different families may have layers with the same names and shapes. Only checked if the
/// adapter's base is on this machine.
void require_same_family(const fs::path& directory, const AdapterConfig& config,
                         const spec::ArchSpec& arch) {
  const fs::path path = fs::path(config.base_model_name_or_path) / "config.json";
  if (config.base_model_name_or_path.empty() || !leads_to_file(path)) return;
  spec::ArchSpec base;
  try {
    base = spec::ArchSpec::from_hf_config(parse_json(read_text_file(path), path.string()),
                                          path.string());
  } catch (const Error&) {
    return;  // not a supported model
  }
  // GGUF files store some families under the name of another: Mistral as llama.
  const bool same_in_gguf = spec::gguf_architecture(base) == spec::gguf_architecture(arch) &&
                            (base.mixture.num_experts > 0) == (arch.mixture.num_experts > 0);
  if (base.family == arch.family || same_in_gguf) return;
  throw DataError(
      fmt::format(
          "the adapter was trained on the model family {} ({}), but this model is of the family {}",
          base.family, config.base_model_name_or_path, arch.family),
      directory.string(), "use the adapter's own base model");
}

/// With ensure_weight_tying PEFT names only the embedding and trains the tied head with it. Saved
/// rows replace both and are not a separate module; an adapter is stored for both.
void keep_ends_tied(AdapterConfig& config, const spec::ArchSpec& arch) {
  if (!config.ensure_weight_tying || !arch.tie_word_embeddings) return;
  const std::string embedding = spec::embedding_module(arch);
  spec::LoraSpec& lora = config.lora;
  std::erase_if(lora.modules_to_save, [&](const std::string& name) {
    return spec::is_saved({name}, embedding + std::string(kWeightName)) ||
           spec::is_saved({name}, spec::kHeadModule + std::string(kWeightName));
  });
  if (!spec::is_end_target(lora, embedding) || spec::is_end_target(lora, spec::kHeadModule)) return;
  if (lora.target_pattern)
    lora.target_pattern = spec::target_pattern(
        fmt::format("(?:{})|{}", lora.target_pattern->pattern(), spec::kHeadModule));
  else
    lora.target_modules.push_back(spec::kHeadModule);
}

/// The linear modules, embedding and head that `target_modules` names.
std::set<std::string> targeted_modules(const spec::LoraSpec& lora, const spec::ArchSpec& arch) {
  std::set<std::string> names = spec::adapted_names(lora, arch);
  const std::string projection = arch.prefix + "per_layer_model_projection";
  if (arch.per_layer_size > 0 && spec::is_target(lora, projection, spec::LinearSpec{}, arch))
    names.insert(projection);
  std::erase_if(names, [&](const std::string& name) {  // what `target_parameters` names
    return spec::is_target(lora, name) || spec::is_target(lora, name + std::string(kWeightName));
  });
  return names;
}

/// Whether a target is the name of no module: as in PEFT it has no effect if others have one.
bool names_no_module(const spec::LoraSpec& lora, const std::vector<std::string>& modules) {
  if (lora.target_pattern) return false;
  return std::any_of(
      lora.target_modules.begin(), lora.target_modules.end(), [&](const std::string& target) {
        return target != "all-linear" &&
               std::none_of(modules.begin(), modules.end(), [&](const std::string& module) {
                 return ends_with_name(module, target);
               });
      });
}

/// Takes the modules without tensors from the targets: as in PEFT they stay as in the base.
void keep_modules_of_file(AdapterConfig& config, const SafetensorsFile& file,
                          const spec::ArchSpec& arch) {
  std::set<std::string> in_file;
  for (const SafetensorsEntry& entry : file.entries()) {
    if (!entry.name.starts_with(kPeftPrefix)) continue;
    in_file.insert(module_of_update(entry.name.substr(kPeftPrefix.size())));
  }
  std::vector<std::string> kept;
  for (const std::string& module : targeted_modules(config.lora, arch))
    (in_file.contains(module) ? kept : config.without_tensors).push_back(module);
  const bool has_others = !config.lora.target_parameters.empty();
  const bool is_exact = config.without_tensors.empty() && !names_no_module(config.lora, kept);
  if (is_exact || (kept.empty() && !has_others)) {
    config.without_tensors.clear();
    return;
  }
  config.lora.target_modules = std::move(kept);
  config.lora.target_pattern.reset();
}

/// Gives one adapter its rank and alpha, before all patterns.
void set_sizes(spec::LoraSpec& lora, const std::string& name, int64_t r, double alpha) {
  const std::string pattern = ".*\\." + name.substr(name.find('.') + 1);
  lora.rank_pattern.insert(lora.rank_pattern.begin(), {pattern, static_cast<double>(r)});
  lora.alpha_pattern.insert(lora.alpha_pattern.begin(), {pattern, alpha});
}

/// Adds the targets of adapters that older PEFT versions wrote for single experts.
void add_old_experts(AdapterConfig& config, const SafetensorsFile& file,
                     const spec::ArchSpec& arch) {
  bool has_old = false;
  const spec::LoraSpec written = config.lora;
  for (const auto& [parameter, module] : parameters_of_old_modules(file, arch)) {
    const bool is_named = std::any_of(
        config.lora.target_parameters.begin(), config.lora.target_parameters.end(),
        [&name = parameter](const std::string& target) { return ends_with_name(name, target); });
    if (is_named) continue;
    has_old = true;
    config.lora.target_parameters.push_back(parameter);
    // Gate's ranks followed by up's. The scale is kept, also if it depends on the square root of
    // the rank.
    const int64_t r = written.r_of(module) * (parameter.ends_with("gate_up_proj") ? 2 : 1);
    if (r == written.r_of(parameter) && written.scale_of(module) == written.scale_of(parameter))
      continue;
    set_sizes(config.lora, parameter, r, written.alpha_for(module, r));
  }
  if (!has_old) return;
  config.lora.dropout = 0;  // adapters of experts have no dropout here
  if (config.lora.target_pattern) return;
  std::erase_if(config.lora.target_modules, [&](const std::string& target) {
    return names_single_experts(target) && !has_dense_module(file, target, arch);
  });
}

/// The text part, and the parts of the image side that have tensors in the file.
TrainedParts parts_in(const SafetensorsFile& file, const spec::ArchSpec& arch) {
  TrainedParts parts = TrainedParts::text();
  for (const SafetensorsEntry& entry : file.entries()) {
    if (!entry.name.starts_with(kPeftPrefix)) continue;
    if (const auto part = spec::part_of(arch, entry.name.substr(kPeftPrefix.size())))
      parts.add(*part);
  }
  return parts;
}

/// `target_parameters` that name weights of linear modules are adapters of these modules. PEFT
/// stores and computes them alike, but matches its patterns against the name of the parameter.
void name_linears_by_module(AdapterConfig& config, const spec::ArchSpec& arch) {
  spec::LoraSpec& lora = config.lora;
  const spec::LoraSpec written = lora;
  std::set<std::string> modules;
  const auto is_of_linear = [&](const std::string& target) {
    bool found = false;
    for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
      for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
        if (linear.is_router) continue;
        const std::string module = spec::name_in_layer(arch, layer, linear.module);
        if (!ends_with_name(module + std::string(kWeightName), target)) continue;
        modules.insert(module);
        found = true;
      }
    }
    return found;
  };
  if (std::erase_if(lora.target_parameters, is_of_linear) == 0) return;
  for (const std::string& module : modules) {
    const std::string parameter = module + std::string(kWeightName);
    const int64_t r = written.r_of(parameter);
    if (r != written.r_of(module) || written.scale_of(parameter) != written.scale_of(module))
      set_sizes(lora, module, r, written.alpha_for(parameter, r));
  }
  if (!lora.target_pattern) {
    lora.target_modules.insert(lora.target_modules.end(), modules.begin(), modules.end());
    return;
  }
  std::string expression = fmt::format("(?:{})", lora.target_pattern->pattern());
  for (const std::string& module : modules) expression += "|" + module;
  lora.target_pattern = spec::target_pattern(std::move(expression));
}

}  // namespace

AdapterConfig load_named_targets(const fs::path& directory, const spec::ArchSpec& arch) {
  AdapterConfig config = AdapterConfig::load(directory);
  const fs::path path = directory / kTensorsFile;
  if ((arch.vision || !arch.projectors.empty()) && has_optional_file(path))
    config.lora.parts = parts_in(open_adapter_file(path), arch);
  name_linears_by_module(config, arch);
  keep_ends_tied(config, arch);
  if (arch.mixture.num_experts > 0 && !arch.mixture.beside_dense && has_optional_file(path))
    add_old_experts(config, open_adapter_file(path), arch);
  return config;
}

AdapterConfig load_adapter_config(const fs::path& directory, const spec::ArchSpec& arch) {
  AdapterConfig config = load_named_targets(directory, arch);
  const fs::path path = directory / kTensorsFile;
  if (has_optional_file(path)) keep_modules_of_file(config, open_adapter_file(path), arch);
  return config;
}

AdapterTensors load_adapter(const fs::path& directory, const AdapterConfig& config,
                            const spec::ArchSpec& arch) {
  require_same_family(directory, config, arch);
  const fs::path path = directory / kTensorsFile;
  if (!has_optional_file(path)) {
    const bool pickled = leads_to_file(directory / "adapter_model.bin");
    throw DataError(
        "no adapter_model.safetensors in this directory", directory.string(),
        pickled ? "adapter_model.bin is not supported: save the adapter as safetensors" : "");
  }
  if (!config.without_tensors.empty() && config.left_out.is_empty()) {
    log::warn(
        "{}: {} of the modules that target_modules names have no tensors ({}): they stay as in the "
        "base, as in PEFT",
        path.string(), config.without_tensors.size(),
        config.without_tensors.size() == 1 ? config.without_tensors.front()
                                           : config.without_tensors.front() + ", …");
  }
  return AdapterReader(path, config, arch).read();
}

std::string adapter_hash(const fs::path& directory) {
  const fs::path path = directory / kTensorsFile;
  return has_optional_file(path) ? remembered_hashes().of(path) : "";
}

void require_text_adapter(const AdapterTensors& adapter, const spec::ArchSpec& arch,
                          const fs::path& directory) {
  const auto check = [&](const std::string& name) {
    const auto part = spec::part_of(arch, name + ".");
    if (!part || *part == ModelPart::kLanguage) return;
    throw DataError(
        fmt::format("the adapter has {}, of the {} part, and the text model alone is written", name,
                    part_name(*part)),
        directory.string(), "load it beside its base, by PEFT");
  };
  for (const auto& entry : adapter.lora) check(entry.first);
  for (const auto& entry : adapter.saved) check(entry.first);
}

void write_adapter(const fs::path& directory, const AdapterConfig& config,
                   const std::vector<TensorToWrite>& tensors) {
  make_directories(directory);
  write_safetensors(directory / "adapter_model.safetensors", tensors);
  if (!config.base_record.is_null())
    write_file_atomically(directory / "sftrun_base.json", config.base_record.dump(2) + "\n");
  write_file_atomically(directory / "adapter_config.json", config.to_json().dump(2) + "\n");
}

}  // namespace sftrun::weights
