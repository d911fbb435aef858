#include "axolotl_preference.h"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "preference.h"
#include "sftrun/core/strings.h"

namespace sftrun::foreign {
namespace {

using config::Objective;

constexpr auto kAxolotlObjectives = std::to_array<Objective>(
    {Objective::kDpo, Objective::kIpo, Objective::kKto, Objective::kOrpo, Objective::kSimpo});

bool is_axolotl_objective(const Conversion& conversion, Objective objective) {
  const ObjectiveInfo* named = axolotl_preference(conversion);
  return named != nullptr && named->objective == objective;
}

/// Axolotl refuses such keys beside another `rl`.
bool require_dpo_of_axolotl(Conversion& conversion, const SourceKey& key) {
  if (is_axolotl_objective(conversion, Objective::kDpo)) return true;
  conversion.refuse(key, fmt::format("`{}` is for `rl: dpo`", key.name),
                    "remove it, or set rl to dpo");
  return false;
}

std::vector<std::string> losses_of_axolotl(const Conversion& conversion) {
  const auto key = conversion.find("dpo_loss_type");
  return key && !is_off(key->value) ? loss_names(key->value) : std::vector<std::string>{"sigmoid"};
}

/// @param key that names the losses, or their weights
void set_losses_of_axolotl(Conversion& conversion, const SourceKey& key) {
  auto losses = weighted_losses(conversion, losses_of_axolotl(conversion),
                                conversion.find("dpo_loss_weights"), "dpo_loss_type");
  if (!losses) return;
  const double sft = parse_double(conversion.text_of("rpo_alpha")).value_or(0);
  if (sft > 0) add_loss(*losses, "sft", sft);
  set_losses(conversion, key, *axolotl_preference(conversion), *losses);
}

}  // namespace

const ObjectiveInfo* axolotl_preference(const Conversion& conversion) {
  const ObjectiveInfo* named = config::find_objective(ascii_lower(conversion.text_of("rl")));
  if (named == nullptr) return nullptr;
  for (const Objective objective : kAxolotlObjectives)
    if (named->objective == objective) return named;
  return nullptr;
}

void axolotl_objective(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (const ObjectiveInfo* objective = axolotl_preference(conversion))
    return conversion.set(key, "train.objective", objective->name);
  const ObjectiveInfo* named = config::find_objective(ascii_lower(key.value.text));
  if (named != nullptr && named->takes_rollouts)
    return conversion.refuse(
        key,
        fmt::format("`rl` is `{}`, which is not supported: Axolotl's rewards and prompts are then "
                    "functions in Python (`trl.reward_funcs`, `type` of the data sets)",
                    named->name),
        fmt::format("remove `rl`, import the rest, and set `train.objective: {}` in the result, "
                    "with data of prompts, and what judges in `train.rollouts.reward`: a function "
                    "by its name, or a program (docs/grpo.md)",
                    named->name));
  refuse_objective(conversion, key);
}

bool is_axolotl_reward_model(const Conversion& conversion) {
  const auto key = conversion.find("reward_model");
  return key && !is_off(key->value);
}

void axolotl_reward_model(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (const auto rl = conversion.find("rl"); rl && !is_off(rl->value))
    return conversion.refuse(*rl, key, "`reward_model` and `rl` name two objectives",
                             "keep one of them");
  conversion.set(key, "train.objective", config::objective_info(Objective::kReward).name);
}

void axolotl_beta(Conversion& conversion, const SourceKey& key) {
  if (axolotl_preference(conversion) == nullptr)
    return conversion.note_no_meaning(key, "only used with rl");
  for (const char* name : {"trl.beta", "rl_beta", "dpo_beta", "orpo_alpha"}) {
    if (key.name == name) return conversion.set(key, "train.beta", key.value);
    if (conversion.find(name))
      return conversion.note_no_meaning(key, fmt::format("`{}` of the file is used instead", name));
  }
}

void axolotl_loss(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value) || !require_dpo_of_axolotl(conversion, key)) return;
  set_losses_of_axolotl(conversion, key);
}

void axolotl_loss_weights(Conversion& conversion, const SourceKey& key) {
  const auto losses = conversion.find("dpo_loss_type");
  if (is_off(key.value) || (losses && !is_off(losses->value))) return;
  if (key.name == "rpo_alpha" && !is_axolotl_objective(conversion, Objective::kDpo))
    return conversion.note_no_meaning(key, "only used with rl dpo");
  if (!require_dpo_of_axolotl(conversion, key)) return;
  if (key.name == "dpo_loss_weights")
    return conversion.refuse(key, "`dpo_loss_weights` are the weights of `dpo_loss_type`",
                             "name the losses in dpo_loss_type");
  set_losses_of_axolotl(conversion, key);
}

void axolotl_smoothing(Conversion& conversion, const SourceKey& key) {
  if (!is_axolotl_objective(conversion, Objective::kDpo))
    return conversion.note_no_meaning(key, "only used with rl dpo");
  set_smoothing_of_dpo(conversion, key, losses_of_axolotl(conversion));
}

void axolotl_of_simpo(Conversion& conversion, const SourceKey& key) {
  if (!is_axolotl_objective(conversion, Objective::kSimpo))
    return conversion.note_no_meaning(key, "only used with rl simpo");
  conversion.set(key, "train." + key.name, key.value);
}

/// Axolotl takes a 0 as 1.
void axolotl_kto_weight(Conversion& conversion, const SourceKey& key) {
  if (!is_axolotl_objective(conversion, Objective::kKto))
    return conversion.note_no_meaning(key, "only used with rl kto");
  if (parse_double(key.value.text) == 0.0)
    return conversion.note_no_meaning(key, "Axolotl takes 0 as 1, the default");
  conversion.set(key, "train." + key.name.substr(std::string_view("kto_").size()), key.value);
}

/// With dpo, ipo and kto Axolotl reads the settings of that adapter alone, and trains a new one
/// (loaders/model.py, _load_adapters).
void axolotl_adapter_dir(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  const ObjectiveInfo* objective = axolotl_preference(conversion);
  if (objective == nullptr || !objective->needs_reference)
    return conversion.set(key, "tuning.lora.init_from", key.value);
  conversion.note_lost(
      key,
      fmt::format("with rl {} Axolotl reads the settings of this adapter alone, and trains a new "
                  "one; to train on from it, set `tuning.lora.init_from`",
                  objective->name));
}

/// That model has the adapter of lora_model_dir (train.py, setup_reference_model).
void axolotl_reference(Conversion& conversion, const SourceKey& key) {
  const ObjectiveInfo* objective = axolotl_preference(conversion);
  const auto adapter = conversion.find("adapter"), start = conversion.find("lora_model_dir");
  if (objective == nullptr || !objective->needs_reference || !adapter || is_off(adapter->value))
    return conversion.note_no_meaning(key, "only used with a reference model, and an adapter");
  if (is_off(key.value) || !start || is_off(start->value))
    return conversion.note_no_meaning(key,
                                      "the reference is the base model, as which training starts");
  conversion.set(key, "train.reference", start->value.text);
}

void axolotl_precompute(Conversion& conversion, const SourceKey& key) {
  if (is_axolotl_objective(conversion, Objective::kKto))
    return conversion.note_no_meaning(key, "Axolotl reads it with rl dpo and ipo alone");
  set_precomputed_reference(conversion, key, axolotl_preference(conversion));
}

void finish_objective_of_axolotl(Conversion& conversion) {
  if (is_axolotl_objective(conversion, Objective::kSimpo) && !conversion.has("train.cpo_alpha"))
    conversion.set_default("train.cpo_alpha", "1");  // of TRL's CPOConfig
}

}  // namespace sftrun::foreign
