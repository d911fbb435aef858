#include "factory_preference.h"

#include <fmt/format.h>

#include <string>

#include "preference.h"
#include "sftrun/core/strings.h"

namespace sftrun::foreign {
namespace {

using config::Objective;

std::string pref_loss_of(const Conversion& conversion) {
  const std::string loss = ascii_lower(conversion.text_of("pref_loss"));
  return loss.empty() ? "sigmoid" : loss;
}

bool is_factory_objective(const Conversion& conversion, Objective objective) {
  const ObjectiveInfo* own = factory_objective(conversion);
  return own != nullptr && own->objective == objective;
}

/// 0: the file does not have the key, or it is no number.
double weight_of_factory(const Conversion& conversion, const char* key) {
  return parse_double(conversion.text_of(key)).value_or(0);
}

bool has_factory_reference(const Conversion& conversion) {
  const ObjectiveInfo* objective = factory_objective(conversion);
  return objective != nullptr && objective->needs_reference;
}

bool is_on_in_factory(const Conversion& conversion, const char* name) {
  const auto key = conversion.find(name);
  return key && !is_off(key->value);
}

bool trains_factory_adapter(const Conversion& conversion) {
  const std::string type = conversion.text_of("finetuning_type");
  return type.empty() || ascii_lower(type) == "lora";
}

}  // namespace

bool is_stage(const Conversion& conversion, std::string_view stage) {
  return ascii_lower(conversion.text_of("stage")) == stage;
}

const ObjectiveInfo* factory_objective(const Conversion& conversion) {
  if (is_stage(conversion, "kto")) return &config::objective_info(Objective::kKto);
  if (is_stage(conversion, "rm")) return &config::objective_info(Objective::kReward);
  if (is_stage(conversion, "sft") || is_stage(conversion, "pt"))
    return &config::objective_info(Objective::kSft);
  if (!is_stage(conversion, "dpo")) return nullptr;
  const std::string loss = pref_loss_of(conversion);
  return &config::objective_info(loss == "orpo"    ? Objective::kOrpo
                                 : loss == "simpo" ? Objective::kSimpo
                                                   : Objective::kDpo);
}

void factory_stage(Conversion& conversion, const SourceKey& key) {
  if (const ObjectiveInfo* objective = factory_objective(conversion))
    return conversion.set(key, "train.objective", objective->name);
  refuse_objective(conversion, key);
}

void factory_preference(Conversion& conversion, const SourceKey& key) {
  if (!is_stage(conversion, "dpo"))
    return conversion.note_no_meaning(key, "only used with stage dpo");
  const std::string loss = pref_loss_of(conversion);
  if (loss == "kto_pair")
    return conversion.refuse(key, "`pref_loss` is `kto_pair`, which is not supported",
                             "TRL 0.18 and later have no such loss, and LLaMA-Factory trains with "
                             "the sigmoid: set pref_loss to sigmoid, or stage to kto");
  if (loss == "orpo")
    conversion.note_lost(
        key,
        "LLaMA-Factory adds the cross-entropy of the chosen answers, a mean for "
        "each; `train.objective: orpo` that of prompts and answers, a mean over all "
        "tokens, as TRL");
  else if (loss == "hinge" || loss == "ipo")
    conversion.note_lost(
        key, fmt::format("with TRL 0.20 and later LLaMA-Factory trains with the sigmoid, whatever "
                         "this key says; here the loss is {}",
                         loss));
}

void factory_cross_entropy(Conversion& conversion, const SourceKey& key) {
  const double weight = weight_of_factory(conversion, "pref_ftx");
  if (weight == 0) return;
  const ObjectiveInfo* objective = factory_objective(conversion);
  if (objective == nullptr || objective->is_cross_entropy)
    return conversion.note_no_meaning(key, "only used with stages dpo and kto");
  switch (objective->objective) {
    case Objective::kDpo:
      break;  // finish_losses_of_factory
    case Objective::kSimpo:
      conversion.set(key, "train.cpo_alpha", key.value);
      break;
    case Objective::kOrpo:
      return conversion.note_lost(
          key,
          fmt::format("the cross-entropy has the weight 1 + {} there, and 1 here", key.value.text));
    default:
      return conversion.note_lost(
          key, "the cross-entropy of desirable answers is not added to `train.objective: kto`");
  }
  conversion.note_lost(
      key,
      "LLaMA-Factory takes the mean for each answer; here it is over the tokens of "
      "all chosen answers: short answers weigh more there");
}

void factory_bco(Conversion& conversion, const SourceKey& key) {
  if (weight_of_factory(conversion, "pref_bco_weight") == 0) return;
  if (!is_factory_objective(conversion, Objective::kDpo))
    return conversion.note_no_meaning(key, "only used with a reference model, in stage dpo");
  conversion.note_lost(key,
                       "LLaMA-Factory subtracts the running mean of the rewards; the loss bco_pair "
                       "does not, as in TRL");
}

void factory_smoothing(Conversion& conversion, const SourceKey& key) {
  const bool is_read =
      is_factory_objective(conversion, Objective::kDpo) && pref_loss_of(conversion) == "sigmoid";
  if (!is_read)
    return conversion.note_no_meaning(key, "only used with stage dpo and pref_loss sigmoid");
  if (!is_off(key.value)) conversion.set(key, "train.label_smoothing", key.value);
}

void factory_length(Conversion& conversion, const SourceKey& key) {
  if (!is_stage(conversion, "dpo"))
    return conversion.note_no_meaning(key, "only used with stage dpo");
  if (!is_factory_objective(conversion, Objective::kDpo))
    return conversion.note_lost(key, fmt::format("it is not supported with `train.objective: {}`",
                                                 factory_objective(conversion)->name));
  conversion.set(key, "train.ld_alpha", key.value);
  conversion.note_lost(
      key,
      "LLaMA-Factory applies it to the trained model alone; here it applies to the "
      "reference model, too, as in TRL 1.16");
}

/// Without it the reference is the model without its adapters, or a copy of the model.
void factory_reference(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (!has_factory_reference(conversion))
    return conversion.note_no_meaning(
        key,
        "only used with stages dpo (but orpo and simpo) and kto, which have a reference model");
  const bool is_base = key.value.text == conversion.text_of("model_name_or_path");
  if (is_on_in_factory(conversion, "ref_model_adapters")) {
    if (!is_base)
      conversion.note_lost(key,
                           "the reference is another model with an adapter: merge them (`sftrun "
                           "merge`), and set `train.reference` to the result");
    return;
  }
  if (!is_base) return conversion.set(key, "train.reference", key.value);
  if (trains_factory_adapter(conversion)) return conversion.set(key, "train.reference", "base");
  conversion.note_no_meaning(key, "the reference is the model as the run starts");
}

/// LLaMA-Factory merges a list of them.
void factory_reference_adapter(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (!has_factory_reference(conversion) || !is_on_in_factory(conversion, "ref_model"))
    return conversion.note_no_meaning(key, "only used with ref_model");
  if (conversion.text_of("ref_model") != conversion.text_of("model_name_or_path"))
    return conversion.note_lost(key, "`train.reference` takes an adapter of `model.name` alone");
  if (key.value.kind != Value::Kind::kScalar || key.value.text.find(',') != std::string::npos)
    return conversion.note_lost(
        key, "`train.reference` takes one adapter: merge the others into a model");
  conversion.set(key, "train.reference", key.value);
}

/// The reference is the model with adapters off, and so without this adapter.
void factory_adapter(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  conversion.set(key, "tuning.lora.init_from", key.value);
  const bool is_start = has_factory_reference(conversion) && trains_factory_adapter(conversion) &&
                        !is_on_in_factory(conversion, "ref_model") &&
                        !is_on_in_factory(conversion, "create_new_adapter");
  if (is_start) conversion.set(key, "train.reference", "base");
}

/// (L + W bco) / (1 + W) + F times the cross-entropy, of `pref_loss` L, `pref_bco_weight` W and
/// `pref_ftx` F.
void finish_losses_of_factory(Conversion& conversion) {
  if (!is_factory_objective(conversion, Objective::kDpo)) return;
  const double bco = weight_of_factory(conversion, "pref_bco_weight"),
               sft = weight_of_factory(conversion, "pref_ftx");
  if (bco < 0 || sft < 0)
    return conversion.refuse(*conversion.find(bco < 0 ? "pref_bco_weight" : "pref_ftx"),
                             "a weight is below 0", "write a number of at least 0");
  WeightedLosses losses{{pref_loss_of(conversion), 1 / (1 + bco)}};
  if (bco > 0) losses.push_back({"bco_pair", bco / (1 + bco)});
  if (sft > 0) losses.push_back({"sft", sft});
  for (const char* name : {"pref_loss", "pref_bco_weight", "pref_ftx"}) {
    const auto key = conversion.find(name);
    if (key) return set_losses(conversion, *key, *factory_objective(conversion), losses);
  }
}

}  // namespace sftrun::foreign
