#include "sftrun/spec/trained_names.h"

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::spec {
namespace {

/// Of models with experts only attention: peft takes the names of dense feed-forward halves there
/// for the experts'.
bool is_targetable(LinearSlot slot, const ArchSpec& arch) {
  const bool is_dense_half =
      slot == LinearSlot::kGate || slot == LinearSlot::kUp || slot == LinearSlot::kDown;
  if (arch.mixture.beside_dense) return true;  // its router is a linear module like the others
  return slot != LinearSlot::kRouter && (arch.mixture.num_experts == 0 || !is_dense_half);
}

void require_parameters_exist(const LoraTargets& targets, const ArchSpec& arch) {
  std::vector<std::string> names, known;
  const auto add = [&](int64_t layer, const std::string& parameter) {
    names.push_back(name_in_layer(arch, layer, parameter));
    if (std::find(known.begin(), known.end(), parameter) == known.end()) known.push_back(parameter);
  };
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const ExpertSpec& experts : layer_experts(arch, layer)) add(layer, experts.module);
    for (const LinearSpec& linear : layer_linears(arch, layer)) {
      if (linear.slot == LinearSlot::kRouter) add(layer, linear.module + ".weight");
    }
  }
  std::vector<std::string> missing;
  for (const std::string& target : targets.parameters) {
    const bool found = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return ends_with_name(name, target);
    });
    if (!found) missing.push_back("`" + target + "`");
  }
  if (!missing.empty()) {
    throw ConfigError(fmt::format("no experts' parameter is named {}", join(missing, " or ")),
                      "tuning.lora.target_parameters",
                      names.empty() ? "the model has no experts: remove it"
                                    : "there are, in every layer of experts: " + join(known, ", "));
  }
  if (!targets.parameters.empty() && targets.dropout > 0) {
    throw ConfigError("experts' updates have no dropout", "tuning.lora.dropout",
                      "set tuning.lora.dropout to 0, or remove tuning.lora.target_parameters (peft "
                      "has the same limit)");
  }
}

/// One of each kind over all layers.
std::vector<LinearSpec> all_linears(const ArchSpec& arch) {
  std::vector<LinearSpec> linears;
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

/// A router's update has another name.
void refuse_router(const std::string& target, const std::vector<LinearSpec>& linears) {
  for (const LinearSpec& linear : linears) {
    if (linear.slot != LinearSlot::kRouter || !ends_with_name(linear.module, target)) continue;
    throw ConfigError(
        fmt::format("`{}` names the routers, which peft takes for parameters", target),
        "tuning.lora.target_modules",
        fmt::format("set tuning.lora.target_parameters: [{}.weight]", linear.module));
  }
}

}  // namespace

bool is_target(const LoraTargets& targets, const std::string& parameter) {
  return std::any_of(targets.parameters.begin(), targets.parameters.end(),
                     [&](const std::string& target) { return ends_with_name(parameter, target); });
}

bool is_target(const LoraTargets& targets, const std::string& module, LinearSlot slot,
               const ArchSpec& arch) {
  if (slot == LinearSlot::kRouter && is_target(targets, module + ".weight")) return true;
  if (!is_targetable(slot, arch)) return false;
  if (targets.is_pattern) return std::regex_match(module, std::regex(targets.modules.at(0)));
  for (const std::string& target : targets.modules) {
    if (target == "all-linear" || ends_with_name(module, target)) return true;
  }
  return false;
}

void require_targets_exist(const LoraTargets& targets, const ArchSpec& arch) {
  require_parameters_exist(targets, arch);
  if (targets.is_pattern) return;
  const std::vector<LinearSpec> linears = all_linears(arch);
  std::vector<std::string> names;
  for (const LinearSpec& linear : linears) {
    if (is_targetable(linear.slot, arch))
      names.push_back(linear.module.substr(linear.module.rfind('.') + 1));
  }
  for (const std::string& target : targets.modules) {
    if (target == "all-linear") continue;
    bool found = false;
    for (const LinearSpec& linear : linears) {
      if (!is_targetable(linear.slot, arch)) continue;
      // A target may name a layer too ("layers.3.self_attn.q_proj"); its last words decide.
      found =
          found || ends_with_name(linear.module, target) || ends_with_name(target, linear.module);
    }
    if (found) continue;
    if (arch.mixture.num_experts > 0 && names_experts(target)) {
      throw ConfigError(fmt::format("`{}` names experts, which are no linear layers", target),
                        "tuning.lora.target_modules",
                        "set tuning.lora.target_parameters: [mlp.experts.gate_up_proj, "
                        "mlp.experts.down_proj]");
    }
    refuse_router(target, linears);
    if (ends_with_name(target, "lm_head") || ends_with_name(target, "embed_tokens")) {
      throw ConfigError(fmt::format("updates of `{}` are not supported in this version", target),
                        "tuning.lora.target_modules",
                        "take it out, or train it whole: tuning.mode: partial");
    }
    const std::string guess = nearest(target, names);
    throw ConfigError(fmt::format("no linear layer is named `{}`", target),
                      "tuning.lora.target_modules",
                      (guess.empty() ? std::string() : fmt::format("did you mean `{}`? ", guess)) +
                          "there are: " + join(names, ", ") + "; or all-linear");
  }
}

std::optional<double> aux_loss_coef(std::optional<double> asked, const MixtureSpec& mixture) {
  const bool has_loss = mixture.num_experts > 0 && mixture.has_aux_loss;
  if (asked.value_or(0) == 0 || has_loss) return asked ? asked : mixture.aux_loss_coef;
  throw ConfigError(mixture.num_experts > 0
                        ? "models of this family have no load-balancing loss of their routers"
                        : "the model has no experts whose load could be balanced",
                    "train.router_aux_loss_coef", "remove it");
}

std::set<std::string> adapted_names(const LoraTargets& targets, const ArchSpec& arch) {
  std::set<std::string> names;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const LinearSpec& linear : layer_linears(arch, layer)) {
      const std::string name = name_in_layer(arch, layer, linear.module);
      if (is_target(targets, name, linear.slot, arch)) names.insert(name);
    }
    for (const ExpertSpec& experts : layer_experts(arch, layer)) {
      const std::string name = name_in_layer(arch, layer, experts.module);
      if (is_target(targets, name)) names.insert(name);
    }
  }
  return names;
}

int64_t num_lora_values(const LoraTargets& targets, int64_t r, const ArchSpec& arch) {
  int64_t total = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const LinearSpec& linear : layer_linears(arch, layer)) {
      if (is_target(targets, name_in_layer(arch, layer, linear.module), linear.slot, arch))
        total += r * (linear.in_features + linear.out_features);
    }
    for (const ExpertSpec& experts : layer_experts(arch, layer)) {
      if (is_target(targets, name_in_layer(arch, layer, experts.module)))
        total += arch.mixture.num_experts * r * (experts.in_features + experts.out_features);
    }
  }
  const std::string projection = arch.prefix + "per_layer_model_projection";
  if (arch.per_layer_size > 0 && is_target(targets, projection, LinearSlot::kQ, arch))
    total += r * (arch.hidden_size + arch.num_layers * arch.per_layer_size);
  return total;
}

TrainableNames::TrainableNames(const std::vector<std::string>& patterns,
                               const std::vector<TensorSpec>& tensors) {
  for (const std::string& pattern : patterns) {
    try {
      patterns_.emplace_back(pattern, std::regex::ECMAScript);
    } catch (const std::regex_error& e) {
      throw ConfigError(
          fmt::format("tuning.trainable: `{}` is not a regular expression: {}", pattern, e.what()));
    }
  }
  std::vector<std::string> names;
  for (const TensorSpec& tensor : tensors) {
    if (match(tensor.name)) return;
    if (tensor.layer <= 0) names.push_back(tensor.name);
  }
  throw ConfigError("tuning.trainable matches no parameter of the model",
                    "tuning.trainable: " + join(patterns, ", "),
                    "parameters are named like: " + join(names, ", "));
}

bool TrainableNames::match(const std::string& name) const {
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const std::regex& pattern) { return std::regex_search(name, pattern); });
}

}  // namespace sftrun::spec
