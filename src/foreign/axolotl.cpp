#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "axolotl_data.h"
#include "axolotl_preference.h"
#include "fsdp.h"
#include "sftrun/core/strings.h"
#include "templates.h"

/// Values of Axolotl's YAML that have another form here (tools/axolotl.yaml).
namespace sftrun::foreign {

extern const std::string_view kAxolotlTable;  // its table

namespace {

using Json = nlohmann::ordered_json;

constexpr auto kAxolotlModes = std::to_array<WordPair>({{"lora", "lora"}, {"qlora", "qlora"}});

/// Examples of one device and step, whatever their micro-batches.
void axolotl_batch(Conversion& conversion, const SourceKey& key) {
  const auto total = conversion.count_of(key.name, 1);
  const int64_t micro = conversion.count_of("micro_batch_size", 1).value_or(1);
  if (!total || conversion.find("gradient_accumulation_steps")) return;
  conversion.set(key, "train.grad_accum", fmt::format("{}", std::max<int64_t>(*total / micro, 1)));
}

/// How to compute what happens several times in an epoch.
std::string steps_of_epoch(std::string_view field, const SourceKey& key) {
  return fmt::format(
      "Set {} to the steps of an epoch, which `sftrun train --dry-run` prints, "
      "divided by {}",
      field, key.value.text);
}

/// Axolotl takes one of the two keys. Whether the number of steps is given.
bool has_steps(Conversion& conversion, const SourceKey& key, const char* name) {
  const auto steps = conversion.find(name);
  if (!steps || is_off(steps->value)) return false;
  conversion.note_no_meaning(key, fmt::format("`{}` of the file is used instead", name));
  return true;
}

void axolotl_evaluations(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value) || has_steps(conversion, key, "eval_steps")) return;
  if (key.value.text == "1") return conversion.set(key, "train.eval_strategy", "epoch");
  conversion.note_lost(key, fmt::format("each epoch ends with an evaluation. {}",
                                        steps_of_epoch("train.eval_steps", key)));
}

void axolotl_saves(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value) || has_steps(conversion, key, "save_steps")) return;
  if (key.value.text != "1")
    return conversion.note_lost(
        key,
        fmt::format("checkpoints are written every 10 minutes (train.save_every; 0 for none). {}",
                    steps_of_epoch("train.save_steps", key)));
  conversion.set(key, "train.save_strategy", "epoch");
  conversion.set(key, "train.save_every", "0");
}

/// true, or where activations are kept.
void axolotl_activations(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (key.value.text == "disk")
    return conversion.note_lost(
        key, "`parallel.offload.activations` keeps them in host memory, not on disks");
  set_offload_of_activations(conversion, key);
}

/// Keys of fsdp_config that name the strategy, with and without the beginning that FSDP 2 leaves
/// out.
constexpr auto kAxolotlSharding = std::to_array<std::string_view>(
    {"fsdp_config.fsdp_sharding_strategy", "fsdp_config.sharding_strategy", kFsdpResharding[0],
     kFsdpResharding[1]});

/// Steps, or a share of all steps, between two of what `steps` or `per_epoch` names. 0: not given
double axolotl_interval(const Conversion& conversion, const char* steps, const char* per_epoch) {
  const auto number = [&](const char* key, double otherwise) {
    return parse_double(conversion.text_of(key)).value_or(otherwise);
  };
  if (const double given = number(steps, 0); given > 0) return given;
  const double in_run = number(per_epoch, 0) * number("num_epochs", 1);
  return in_run > 0 ? 1 / in_run : 0;
}

/// Axolotl keeps the best checkpoint wherever each checkpoint follows an evaluation. Not with `rl`,
/// whose trainers do not read load_best_model_at_end.
void axolotl_best(Conversion& conversion, bool holds_out) {
  const auto is_on = [&](const char* name) {
    const auto key = conversion.find(name);
    return key && !is_off(key->value);
  };
  const bool is_named =
      conversion.find("load_best_model_at_end") || conversion.has("train.load_best_model_at_end");
  if (is_named || is_on("rl") || is_on("test_datasets") == holds_out) return;
  if (const auto strategy = conversion.find("eval_strategy"); strategy && is_off(strategy->value))
    return;
  const double save = axolotl_interval(conversion, "save_steps", "saves_per_epoch");
  const double eval = axolotl_interval(conversion, "eval_steps", "evals_per_epoch");
  if (save > 0 && eval > 0 && std::fmod(save, eval) == 0)
    conversion.set_default("train.load_best_model_at_end", "true");
}

/// FSDP 2 has no key `fsdp`: its fsdp_config is enough.
void axolotl_finish(Conversion& conversion) {
  constexpr int64_t kLoggingSteps = 500;
  finish_objective_of_axolotl(conversion);
  complete_eval_steps(conversion, kLoggingSteps);
  const bool holds_out = parse_double(conversion.text_of("val_set_size")).value_or(0) > 0;
  if (!conversion.find("test_datasets") && !holds_out)
    take_back_evaluations(conversion,
                          "without val_set_size and test_datasets nothing is evaluated");
  axolotl_best(conversion, holds_out);
  const auto section = conversion.find("fsdp_config");
  if (!section) return;
  const std::vector<Value>& values = section->value.items;
  if (std::all_of(values.begin(), values.end(),
                  [](const Value& value) { return value.kind == Value::Kind::kNull; }))
    return;
  for (const std::string_view name : kAxolotlSharding) {
    const auto key = conversion.find(name);
    if (!key) continue;
    const std::string_view strategy = strategy_of_fsdp(key->value.text);
    if (conversion.has("parallel.strategy"))
      conversion.note_no_meaning(*key, "the strategy is given already");
    else if (strategy.empty())
      conversion.note_lost(*key, fmt::format("{} is not a strategy", describe(key->value)));
    else
      conversion.set(*key, "parallel.strategy", strategy);
  }
  if (!conversion.has("parallel.strategy")) conversion.set(*section, "parallel.strategy", "fsdp");
}

/// Records in their order. Otherwise the sampler draws them at random.
void axolotl_curriculum(Conversion& conversion, const SourceKey& key) {
  if (!is_off(key.value)) conversion.set(key, "data.shuffle", "false");
}

void axolotl_deepspeed(Conversion& conversion, const SourceKey& key) {
  if (!is_off(key.value))
    conversion.set(key, "parallel.deepspeed",
                   conversion.source().path_beside(key.value.text).string());
}

void axolotl_trainable(Conversion& conversion, const SourceKey& key) {
  if (key.value.items.empty()) return;
  if (const auto adapter = conversion.find("adapter"); adapter && !is_off(adapter->value))
    return conversion.note_no_meaning(key, "with an adapter the base is frozen");
  conversion.set(key, "tuning.mode", "partial");
  conversion.set(key, "tuning.trainable", key.value);
}

void axolotl_adapter(Conversion& conversion, const SourceKey& key) {
  set_mode(conversion, key, kAxolotlModes);
}

/// All linear layers, with the embedding and head that `lora_target_modules` names beside them.
void axolotl_linear(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  Json names = Json::array({"all-linear"});
  if (const auto listed = conversion.find("lora_target_modules"))
    for (const Value& name : listed->value.items)
      if (name.text == "embed_tokens" || name.text == "lm_head") names.push_back(name.text);
  conversion.set(key, "tuning.lora.target_modules", value_from_json(names));
}
void axolotl_modules(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (parse_bool(conversion.text_of("lora_target_linear")) == true)
    return conversion.note_no_meaning(key, "lora_target_linear names all linear layers");
  conversion.set(key, "tuning.lora.target_modules", key.value);
}

/// Vision tower and projector, which train there unless this is true (axolotl_processor).
void axolotl_frozen_parts(Conversion& conversion, const SourceKey& key) {
  if (!is_off(key.value))
    conversion.note_no_meaning(key, "tower and projector are frozen by default");
}

/// A model with images. Without freeze_mm_modules all of its parts train there, and adapters are
/// for modules of a name in each part.
void axolotl_processor(Conversion& conversion, const SourceKey& key) {
  const auto is_on = [&](const char* name) {
    const auto found = conversion.find(name);
    return found && !is_off(found->value);
  };
  const auto targets = conversion.find("lora_target_modules");
  const bool has_expression = !is_on("lora_target_linear") && targets && !is_off(targets->value) &&
                              targets->value.kind == Value::Kind::kScalar;
  if (!is_on("freeze_mm_modules") && !is_on("adapter") && !is_on("unfrozen_parameters"))
    return conversion.set(key, "tuning.train_parts",
                          value_from_json(Json::array({"language", "projector", "vision"})));
  if (!is_on("freeze_mm_modules") && is_on("adapter") && !has_expression)
    return conversion.note_lost(
        key,
        "Axolotl also adapts modules of the tower that have these names; here the language model "
        "alone trains: `tuning.train_parts: [vision, language]` adapts both");
  conversion.note_no_meaning(key, "the model's directory says what reads its images");
}

/// Quantisation of a base beside plain LoRA; `adapter: qlora` already says 4 bits.
void axolotl_4bit(Conversion& conversion, const SourceKey& key) {
  if (!is_off(key.value) && conversion.text_of("adapter") == "lora")
    conversion.set(key, "tuning.quant", "nf4");
}
void axolotl_8bit(Conversion& conversion, const SourceKey& key) {
  if (!is_off(key.value)) conversion.set(key, "tuning.quant", "int8");
}

constexpr auto kAxolotlConverters = std::to_array<Converter>({
    {"adapter", axolotl_adapter},
    {"4bit", axolotl_4bit},
    {"8bit", axolotl_8bit},
    {"trainable", axolotl_trainable},
    {"frozen_parts", axolotl_frozen_parts},
    {"processor", axolotl_processor},
    {"linear", axolotl_linear},
    {"modules", axolotl_modules},
    {"datasets", axolotl_datasets},
    {"pretraining", axolotl_pretraining},
    {"test_datasets", axolotl_test_datasets},
    {"curriculum", axolotl_curriculum},
    {"evaluations", axolotl_evaluations},
    {"saves", axolotl_saves},
    {"objective", axolotl_objective},
    {"reward_model", axolotl_reward_model},
    {"beta", axolotl_beta},
    {"loss", axolotl_loss},
    {"loss_weights", axolotl_loss_weights},
    {"smoothing", axolotl_smoothing},
    {"of_simpo", axolotl_of_simpo},
    {"kto_weight", axolotl_kto_weight},
    {"adapter_dir", axolotl_adapter_dir},
    {"reference", axolotl_reference},
    {"precompute", axolotl_precompute},
    {"batch", axolotl_batch},
    {"activations", axolotl_activations},
    {"deepspeed", axolotl_deepspeed},
});

}  // namespace

const ToolCode& axolotl() {
  static const ToolCode code{.tool = Tool::kAxolotl,
                             .name = "Axolotl",
                             .word = "axolotl",
                             .table = kAxolotlTable,
                             .converters = kAxolotlConverters,
                             .finish = axolotl_finish};
  return code;
}

}  // namespace sftrun::foreign
