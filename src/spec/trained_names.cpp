#include "sftrun/spec/trained_names.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/spec/vision_tensors.h"

#include <algorithm>
#include <cmath>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::spec {
namespace {

/// In models with experts only attention: there peft applies the names of dense MLPs to the
/// experts.
bool is_targetable(const LinearSpec& linear, const ArchSpec& arch) {
  if (arch.mixture.beside_dense) return true;  // its router is an ordinary linear module
  return !linear.is_router && (arch.mixture.num_experts == 0 || !linear.shares_name_with_experts);
}

/// As target_parameters names them.
std::vector<std::string> expert_parameters(const ArchSpec& arch) {
  std::vector<std::string> names;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    for (const ExpertSpec& experts : layer_experts(arch, layer))
      if (std::find(names.begin(), names.end(), experts.module) == names.end())
        names.push_back(experts.module);
  return names;
}

void require_parameters_exist(const LoraSpec& lora, const ArchSpec& arch) {
  std::vector<std::string> names, known;
  const auto add = [&](int64_t layer, const std::string& parameter) {
    names.push_back(name_in_layer(arch, layer, parameter));
    if (std::find(known.begin(), known.end(), parameter) == known.end()) known.push_back(parameter);
  };
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const ExpertSpec& experts : layer_experts(arch, layer)) add(layer, experts.module);
    for (const LinearSpec& linear : layer_linears(arch, layer)) {
      if (linear.is_router) add(layer, linear.module + ".weight");
    }
  }
  std::vector<std::string> missing;
  for (const std::string& target : lora.target_parameters) {
    const bool found = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return ends_with_name(name, target);
    });
    if (!found) missing.push_back("`" + target + "`");
  }
  if (!missing.empty()) {
    throw ConfigError(fmt::format("no parameter of the experts is named {}", join(missing, " or ")),
                      "tuning.lora.target_parameters",
                      names.empty()
                          ? "the model has no experts: remove it"
                          : "available in every layer with experts: " + join(known, ", "));
  }
  if (!lora.target_parameters.empty() && lora.dropout > 0) {
    throw ConfigError("adapters of experts do not support dropout", "tuning.lora.dropout",
                      "set tuning.lora.dropout to 0, or remove tuning.lora.target_parameters (peft "
                      "has the same limit)");
  }
}

std::string module_of(const TensorSpec& tensor) {
  return tensor.name.substr(0, tensor.name.rfind('.'));
}

/// The tensors of modules that can be fully trained, including the head even if it is tied.
std::vector<TensorSpec> tensors_with_head(const ArchSpec& arch, const TrainedParts& parts) {
  std::vector<TensorSpec> tensors = tensor_specs(arch);
  std::erase_if(tensors, [&](const TensorSpec& tensor) { return !parts.has(tensor.part); });
  if (arch.vision && parts.has_image_side()) {
    for (TensorSpec& tensor : vision_tensor_specs(*arch.vision, arch.hidden_size))
      if (parts.has(tensor.part) && is_read(*arch.vision, tensor))
        tensors.push_back(std::move(tensor));
  }
  if (parts.language && arch.tie_word_embeddings) {
    tensors.push_back({.name = "lm_head.weight",
                       .shape = {arch.vocab_size, arch.hidden_size},
                       .role = TensorRole::kHead});
  }
  return tensors;
}

/// A name that only parts have that do not train.
template <class IsNamed>
void refuse_frozen_part(const char* key, const std::string& name, const TrainedParts& parts,
                        const ArchSpec& arch, const IsNamed& is_named) {
  if (!arch.vision) return;
  for (const ModelPart part : kModelParts) {
    if (parts.has(part)) continue;
    TrainedParts alone = TrainedParts::none();
    alone.add(part);
    const std::vector<TensorSpec> tensors = tensors_with_head(arch, alone);
    if (std::none_of(tensors.begin(), tensors.end(), is_named)) continue;
    throw ConfigError(
        fmt::format("{} is in the {} part, which does not train", name, part_name(part)), key,
        fmt::format("add {} to tuning.train_parts", part_name(part)));
  }
}

void require_saved_exist(const LoraSpec& lora, const ArchSpec& arch) {
  constexpr const char* kKey = "tuning.lora.modules_to_save";
  const std::vector<TensorSpec> tensors = tensors_with_head(arch, lora.parts);
  for (const std::string& saved : lora.modules_to_save) {
    std::vector<std::string> leaves;
    bool found = false;
    for (const TensorSpec& tensor : tensors) {
      const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
      leaves.push_back(module.substr(module.rfind('.') + 1));
      if (!is_saved({saved}, tensor.name)) continue;
      found = true;
      // peft stores modules; files store these tensors in another layout.
      const bool is_text = tensor.unit == VisionUnit::kNone;
      if (tensor.role == TensorRole::kExperts || !tensor.parts.empty() ||
          (is_text && tensor.layout.reorders())) {
        throw ConfigError(
            fmt::format("`{}` contains {}, which cannot be trained in full together with adapters",
                        saved, tensor.name),
            kKey, "adapt experts with tuning.lora.target_parameters, or use tuning.mode: partial");
      }
    }
    if (found) continue;
    refuse_frozen_part(kKey, fmt::format("`{}`", saved), lora.parts, arch,
                       [&](const TensorSpec& tensor) { return is_saved({saved}, tensor.name); });
    const std::string guess = nearest(saved, leaves);
    throw ConfigError(fmt::format("no module's name ends in `{}`", saved), kKey,
                      guess.empty() ? "examples of valid names: lm_head, embed_tokens, norm"
                                    : fmt::format("did you mean `{}`?", guess));
  }
}

/// The distinct linear modules over all layers, and those of the image side.
std::vector<LinearSpec> all_linears(const ArchSpec& arch, const TrainedParts& parts) {
  std::vector<LinearSpec> linears;
  for (const TensorSpec& tensor : vision_linears(arch, parts))
    linears.push_back({.module = module_of(tensor)});
  if (!parts.language) return linears;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (LinearSpec& linear : layer_linears(arch, layer)) {
      const bool known = std::any_of(linears.begin(), linears.end(), [&](const LinearSpec& other) {
        return other.module == linear.module;
      });
      if (!known) linears.push_back(std::move(linear));
    }
  }
  if (arch.per_layer_size > 0) linears.push_back({.module = "per_layer_model_projection"});
  return linears;
}

bool names_experts(const std::string& target) {
  for (const char* name : {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "experts"}) {
    if (ends_with_name(target, name)) return true;
  }
  return false;
}

std::string parameters_instead(const std::string& target,
                               const std::vector<std::string>& parameters) {
  return fmt::format(
      "remove {} from tuning.lora.target_modules, and set tuning.lora.target_parameters: [{}]",
      target, join(parameters, ", "));
}

/// A router is selected by another name.
void refuse_router(const std::string& target, const std::vector<LinearSpec>& linears) {
  for (const LinearSpec& linear : linears) {
    if (!linear.is_router || !ends_with_name(linear.module, target)) continue;
    throw ConfigError(
        fmt::format("`{}` names the routers, which peft adapts as parameters", target),
        "tuning.lora.target_modules", parameters_instead(target, {linear.module + ".weight"}));
  }
}

}  // namespace

bool is_saved(const std::vector<std::string>& saved, const std::string& tensor) {
  for (size_t end = tensor.rfind('.'); end != std::string::npos && end > 0;
       end = tensor.rfind('.', end - 1)) {
    const std::string module = tensor.substr(0, end);
    for (const std::string& ending : saved) {
      if (module.ends_with(ending)) return true;
    }
  }
  return false;
}

bool is_target(const LoraSpec& lora, const std::string& parameter) {
  return std::any_of(lora.target_parameters.begin(), lora.target_parameters.end(),
                     [&](const std::string& target) { return ends_with_name(parameter, target); });
}

bool is_target(const LoraSpec& lora, const std::string& module, const LinearSpec& linear,
               const ArchSpec& arch) {
  if (is_saved(lora.modules_to_save, module + ".weight")) return false;
  if (linear.is_router && is_target(lora, module + ".weight")) return true;
  if (!is_targetable(linear, arch)) return false;
  if (lora.target_pattern) return lora.target_pattern->matches(module);
  for (const std::string& target : lora.target_modules) {
    if (target == "all-linear" || ends_with_name(module, target)) return true;
  }
  return false;
}

bool is_end_target(const LoraSpec& lora, const std::string& module) {
  if (is_saved(lora.modules_to_save, module + ".weight")) return false;
  if (lora.target_pattern) return lora.target_pattern->matches(module);
  return std::any_of(lora.target_modules.begin(), lora.target_modules.end(),
                     [&](const std::string& target) { return ends_with_name(module, target); });
}

std::string embedding_module(const ArchSpec& arch) {
  return arch.prefix + "embed_tokens";
}

namespace {

bool names_an_end(const std::string& target, const ArchSpec& arch) {
  const LoraSpec alone{.target_modules = {target}};
  return is_end_target(alone, embedding_module(arch)) ||
         (!arch.score && is_end_target(alone, kHeadModule));
}

}  // namespace

void require_pissa_fits(const LoraSpec& lora, const ArchSpec& arch) {
  const std::string embedding = embedding_module(arch);
  const bool takes_embedding = is_end_target(lora, embedding),
             takes_tied_head = arch.tie_word_embeddings && is_end_target(lora, kHeadModule);
  if (!takes_embedding && !takes_tied_head) return;
  const std::string name = takes_embedding ? embedding : kHeadModule;
  const auto named =
      std::find_if(lora.target_modules.begin(), lora.target_modules.end(),
                   [&](const std::string& target) { return ends_with_name(name, target); });
  throw ConfigError(
      fmt::format("PiSSA does not support {}{}", name,
                  takes_embedding ? "" : ", which is tied to the embedding"),
      "tuning.lora.init",
      fmt::format("remove {} from tuning.lora.target_modules, or set tuning.lora.init to default",
                  named == lora.target_modules.end() ? name : *named));
}

namespace {

/// The last words of names that targets may be, without repetition.
std::vector<std::string> target_names(const std::vector<LinearSpec>& linears,
                                      const TrainedParts& parts, const ArchSpec& arch) {
  std::vector<std::string> names;
  const auto add = [&](std::string name) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(std::move(name));
  };
  for (const LinearSpec& linear : linears)
    if (is_targetable(linear, arch)) add(linear.module.substr(linear.module.rfind('.') + 1));
  if (parts.language) names.emplace_back("embed_tokens");
  if (parts.language && !arch.score) names.emplace_back(kHeadModule);
  return names;
}

void refuse_frozen_target(const std::string& target, const TrainedParts& parts,
                          const ArchSpec& arch) {
  refuse_frozen_part("tuning.lora.target_modules", fmt::format("`{}`", target), parts, arch,
                     [&](const TensorSpec& tensor) {
                       const bool is_linear = tensor.role == TensorRole::kLinear ||
                                              tensor.role == TensorRole::kHead ||
                                              tensor.role == TensorRole::kEmbedding;
                       return is_linear && ends_with_name(module_of(tensor), target);
                     });
}

}  // namespace

void require_targets_exist(const LoraSpec& lora, const ArchSpec& arch) {
  require_parameters_exist(lora, arch);
  require_saved_exist(lora, arch);
  if (lora.target_pattern) return;
  const std::vector<LinearSpec> linears = all_linears(arch, lora.parts);
  const std::vector<std::string> names = target_names(linears, lora.parts, arch);
  for (const std::string& target : lora.target_modules) {
    if (target == "all-linear" || (lora.parts.language && names_an_end(target, arch))) continue;
    bool found = false;
    for (const LinearSpec& linear : linears) {
      if (!is_targetable(linear, arch)) continue;
      // A target may include a layer ("layers.3.self_attn.q_proj"); its last words are compared.
      found =
          found || ends_with_name(linear.module, target) || ends_with_name(target, linear.module);
    }
    if (found) continue;
    refuse_frozen_target(target, lora.parts, arch);
    if (arch.mixture.num_experts > 0 && names_experts(target)) {
      throw ConfigError(fmt::format("`{}` names experts, which are not linear layers", target),
                        "tuning.lora.target_modules",
                        parameters_instead(target, expert_parameters(arch)));
    }
    refuse_router(target, linears);
    const std::string guess = nearest(target, names);
    throw ConfigError(fmt::format("no linear layer is named `{}`", target),
                      "tuning.lora.target_modules",
                      (guess.empty() ? std::string() : fmt::format("did you mean `{}`? ", guess)) +
                          "available: " + join(names, ", ") + "; or all-linear");
  }
}

namespace {

/// The modules with a weight of the whole model that an expression matches, by part.
ByPart<std::vector<std::string>> matched_modules(const PythonRegex& pattern, const ArchSpec& arch) {
  ByPart<std::vector<std::string>> matched;
  std::set<std::string> seen;
  for (const TensorSpec& tensor : tensors_with_head(arch, TrainedParts{}))
    if (const std::string module = module_of(tensor);
        seen.insert(module).second && pattern.matches(module))
      matched[tensor.part].push_back(module);
  return matched;
}

/// Names of linear layers, for messages: of one layer of each part.
std::string names_of_linears(const ArchSpec& arch) {
  std::vector<std::string> names;
  for (const LinearSpec& linear : layer_linears(arch, 0))
    if (names.size() < 3) names.push_back(name_in_layer(arch, 0, linear.module));
  for (const ModelPart part : {ModelPart::kVision, ModelPart::kProjector}) {
    TrainedParts alone = TrainedParts::none();
    alone.add(part);
    if (const std::vector<TensorSpec> linears = vision_linears(arch, alone); !linears.empty())
      names.push_back(module_of(linears.front()));
  }
  return join(names, ", ");
}

/// Parts that have a matched module and can have an adapter: "[language, vision]".
std::string parts_of(const ByPart<std::vector<std::string>>& matched) {
  std::vector<std::string> names;
  for (const ModelPart part : kModelParts)
    if (!matched[part].empty()) names.emplace_back(part_name(part));
  return fmt::format("[{}]", join(names, ", "));
}

}  // namespace

void require_pattern_fits(const LoraSpec& lora, const ArchSpec& arch) {
  constexpr const char* kKey = "tuning.lora.target_modules";
  if (!lora.target_pattern) return;
  const auto matched = matched_modules(*lora.target_pattern, arch);
  if (std::all_of(kModelParts.begin(), kModelParts.end(),
                  [&](ModelPart part) { return matched[part].empty(); }))
    throw ConfigError("the regular expression matches the name of no module", kKey,
                      fmt::format("it has to match a whole name, as in PEFT; names are {}",
                                  names_of_linears(arch)));
  const std::set<std::string> adapted = adapted_names(lora, arch);
  for (const ModelPart part : kModelParts) {
    const std::vector<std::string>& modules = matched[part];
    if (!lora.parts.has(part) && !modules.empty())
      throw ConfigError(
          fmt::format("the regular expression matches {} ({} modules) of the {} part, which does "
                      "not train",
                      modules.front(), modules.size(), part_name(part)),
          kKey,
          fmt::format("set tuning.train_parts to {}, or write the expression so that it matches "
                      "modules of the parts that train: those of the language part begin with {}",
                      parts_of(matched), arch.prefix));
    for (const std::string& module : modules) {
      const bool is_known = adapted.contains(module) ||
                            is_saved(lora.modules_to_save, module + ".weight") ||
                            module == arch.prefix + "per_layer_model_projection";
      if (!is_known)
        throw ConfigError(
            fmt::format("the regular expression matches {}, which gets no adapter", module), kKey,
            fmt::format(
                "write it so that it matches linear layers alone, for example '.*\\.({})'",
                join(target_names(all_linears(arch, lora.parts), TrainedParts::none(), arch),
                     "|")));
    }
  }
}

void require_adapters(const LoraSpec& lora, const ArchSpec& arch) {
  if (!arch.vision || !lora.parts.has_image_side()) return;
  const std::set<std::string> adapted = adapted_names(lora, arch);
  for (const ModelPart part : kModelParts) {
    if (!lora.parts.has(part)) continue;
    TrainedParts alone = TrainedParts::none();
    alone.add(part);
    const std::vector<TensorSpec> tensors = tensors_with_head(arch, alone);
    const bool is_trained =
        std::any_of(adapted.begin(), adapted.end(),
                    [&](const std::string& name) { return part_of(arch, name + ".") == part; }) ||
        std::any_of(tensors.begin(), tensors.end(), [&](const TensorSpec& tensor) {
          return is_saved(lora.modules_to_save, tensor.name);
        });
    if (is_trained) continue;
    const bool has_linears = part == ModelPart::kLanguage || !vision_linears(arch, alone).empty();
    throw ConfigError(
        fmt::format("nothing of the {} part gets an adapter: {}", part_name(part),
                    has_linears ? "`tuning.lora.target_modules` names no linear layer in it"
                                : "it has no linear layers"),
        "tuning.train_parts",
        has_linears ? fmt::format("add names of its layers to target_modules, or take {} out of "
                                  "tuning.train_parts",
                                  part_name(part))
                    : fmt::format("train it in full, for example tuning.train_parts: {{language: "
                                  "lora, {}: full}}",
                                  part_name(part)));
  }
}

std::optional<double> aux_loss_coef(std::optional<double> asked, const MixtureSpec& mixture) {
  const bool has_loss = mixture.num_experts > 0 && mixture.has_aux_loss;
  if (asked.value_or(0) == 0 || has_loss) return asked ? asked : mixture.aux_loss_coef;
  throw ConfigError(mixture.num_experts > 0
                        ? "models of this family have no load-balancing loss for routers"
                        : "the model has no experts, so it has no load-balancing loss",
                    "train.router_aux_loss_coef", "remove it");
}

std::set<std::string> adapted_names(const LoraSpec& lora, const ArchSpec& arch) {
  std::set<std::string> names;
  for (const TensorSpec& tensor : vision_linears(arch, lora.parts))
    if (is_target(lora, module_of(tensor), LinearSpec{}, arch)) names.insert(module_of(tensor));
  if (!lora.parts.language) return names;
  for (const std::string& end : {embedding_module(arch), std::string(kHeadModule)})
    if (is_end_target(lora, end) && (end != kHeadModule || !arch.score)) names.insert(end);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const LinearSpec& linear : layer_linears(arch, layer)) {
      const std::string name = name_in_layer(arch, layer, linear.module);
      if (is_target(lora, name, linear, arch)) names.insert(name);
    }
    for (const ExpertSpec& experts : layer_experts(arch, layer)) {
      const std::string name = name_in_layer(arch, layer, experts.module);
      if (is_target(lora, name)) names.insert(name);
    }
  }
  return names;
}

namespace {

/// One adapter: the name that patterns match, and its number of values per rank.
struct Update {
  std::string name;
  int64_t values_per_rank = 0;
  /// Output features, or channels of an embedding: with DoRA each has a magnitude
  int64_t rows = 0;
};

std::vector<Update> all_updates(const LoraSpec& lora, const ArchSpec& arch) {
  std::vector<Update> updates;
  for (const TensorSpec& tensor : vision_linears(arch, lora.parts))
    if (is_target(lora, module_of(tensor), LinearSpec{}, arch))
      updates.push_back({module_of(tensor), tensor.shape[0] + tensor.shape[1], tensor.shape[0]});
  if (!lora.parts.language) return updates;
  const int64_t both_sides = arch.vocab_size + arch.hidden_size;
  if (is_end_target(lora, embedding_module(arch)))
    updates.push_back({embedding_module(arch), both_sides, arch.hidden_size});
  if (!arch.score && is_end_target(lora, kHeadModule))
    updates.push_back({kHeadModule, both_sides, arch.vocab_size});
  const std::string projection = arch.prefix + "per_layer_model_projection";
  if (arch.per_layer_size > 0 && is_target(lora, projection, LinearSpec{}, arch))
    updates.push_back({projection, arch.hidden_size + arch.num_layers * arch.per_layer_size,
                       arch.num_layers * arch.per_layer_size});
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const LinearSpec& linear : layer_linears(arch, layer)) {
      const std::string name = name_in_layer(arch, layer, linear.module);
      if (is_target(lora, name, linear, arch)) {
        updates.push_back({update_name(lora, name), linear.in_features + linear.out_features,
                           linear.out_features});
      }
    }
    for (const ExpertSpec& experts : layer_experts(arch, layer)) {
      const std::string name = name_in_layer(arch, layer, experts.module);
      if (is_target(lora, name)) {
        updates.push_back(
            {name, arch.mixture.num_experts * (experts.in_features + experts.out_features)});
      }
    }
  }
  return updates;
}

}  // namespace

std::string update_name(const LoraSpec& lora, const std::string& module) {
  const std::string weight = module + ".weight";
  return is_target(lora, weight) ? weight : module;
}

void require_patterns_match(const LoraSpec& lora, const ArchSpec& arch) {
  const std::vector<Update> updates = all_updates(lora, arch);
  const auto require = [&](const NamePattern& pattern, const char* key) {
    for (const auto& entry : pattern) {
      const bool found = std::any_of(updates.begin(), updates.end(), [&](const Update& update) {
        return entry.first.matches(update.name);
      });
      if (found) continue;
      throw ConfigError(
          fmt::format("`{}` matches no adapter", excerpt(entry.first.expression())), key,
          updates.empty()
              ? "remove it"
              : fmt::format("adapters are named like {}; give a full name or its ending",
                            updates.front().name));
    }
  };
  require(lora.rank_pattern, "tuning.lora.rank_pattern");
  require(lora.alpha_pattern, "tuning.lora.alpha_pattern");
}

int64_t num_lora_values(const LoraSpec& lora, const ArchSpec& arch) {
  int64_t total = 0;
  for (const Update& update : all_updates(lora, arch))
    total += lora.r_of(update.name) * update.values_per_rank + (lora.dora ? update.rows : 0);
  for (const TensorSpec& tensor : tensors_with_head(arch, lora.parts)) {
    if (tensor.role != TensorRole::kBuffer && is_saved(lora.modules_to_save, tensor.name))
      total += tensor.numel();
  }
  return total;
}

void require_trainable_parts(const std::vector<std::string>& patterns, const ArchSpec& arch,
                             const TrainedParts& parts) {
  const std::vector<TensorSpec> trained = tensors_with_head(arch, parts);
  for (const std::string& pattern : patterns) {
    const PythonRegex regex(pattern, PythonRegex::Matches::kSearch, "tuning.trainable");
    const auto matches = [&](const TensorSpec& tensor) { return regex.matches(tensor.name); };
    if (std::none_of(trained.begin(), trained.end(), matches))
      refuse_frozen_part("tuning.trainable", fmt::format("`{}`", excerpt(pattern)), parts, arch,
                         matches);
  }
}

TrainableNames::TrainableNames(const std::vector<std::string>& patterns,
                               const std::vector<TensorSpec>& tensors) {
  for (const std::string& pattern : patterns) {
    patterns_.emplace_back(pattern, PythonRegex::Matches::kSearch, "tuning.trainable");
  }
  for (size_t i = 0; i < patterns.size(); ++i) require_match(patterns[i], patterns_[i], tensors);
}

void TrainableNames::require_match(const std::string& pattern, const PythonRegex& regex,
                                   const std::vector<TensorSpec>& tensors) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : tensors) {
    if (regex.matches(tensor.name)) return;
    if (tensor.layer <= 0) names.push_back(tensor.name);
  }
  throw ConfigError("tuning.trainable matches no parameter of the model",
                    "tuning.trainable: " + excerpt(pattern),
                    "parameters are named like: " + join(names, ", "));
}

bool TrainableNames::match(const std::string& name) const {
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const PythonRegex& pattern) { return pattern.matches(name); });
}

}  // namespace sftrun::spec
