#include "templates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "fsdp.h"
#include "sftrun/core/strings.h"

namespace sftrun::foreign {
namespace {

/// Names of other tools, and the built-in templates (docs/configuration.md, model.chat_template).
constexpr auto kTemplates = std::to_array<WordPair>({{"chatml", "chatml"},
                                                     {"llama3", "llama3"},
                                                     {"llama2", "llama2"},
                                                     {"mistral", "mistral"},
                                                     {"gemma", "gemma"},
                                                     {"phi3", "phi3"},
                                                     {"phi_3", "phi3"},
                                                     {"phi", "phi3"},
                                                     {"zephyr", "zephyr"},
                                                     {"vicuna", "vicuna"},
                                                     {"alpaca", "alpaca"}});

}  // namespace

void set_template(Conversion& conversion, const SourceKey& key) {
  const std::string name = ascii_lower(key.value.text);
  const auto* const found = std::find_if(kTemplates.begin(), kTemplates.end(),
                                         [&](const WordPair& pair) { return pair.theirs == name; });
  if (found != kTemplates.end()) return conversion.set(key, "model.chat_template", found->ours);
  if (name.starts_with("tokenizer_default"))
    return conversion.note_no_meaning(key, "the model's own chat template is the default");
  if (name == "jinja" && conversion.find("chat_template_jinja"))
    return conversion.note_no_meaning(key, "`chat_template_jinja` is the template");
  conversion.note_lost(
      key,
      fmt::format("`{}` is not built in: the model's own chat template is used", key.value.text));
}

void set_seconds(Conversion& conversion, const SourceKey& key) {
  const auto seconds = parse_int(key.value.text);
  if (!seconds || *seconds < 1)
    return conversion.note_lost(key,
                                fmt::format("{} is not a number of seconds", describe(key.value)));
  conversion.set(key, "parallel.timeout", fmt::format("{}s", *seconds));
}

void set_seeds(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value) && key.value.text != "0") return;
  conversion.set(key, "train.seed", key.value);
  if (!conversion.find("data_seed"))  // that of the order of the examples alone
    conversion.set(key, "data.seed", key.value, /*is_firm=*/false);
}

void set_scheduler(Conversion& conversion, const SourceKey& key) {
  const std::string name = ascii_lower(key.value.text);
  if (name != "cosine_with_min_lr" && name != "cosine_warmup_with_min_lr")
    return conversion.set(key, "train.scheduler", key.value);
  conversion.set(key, "train.scheduler", "cosine");
  conversion.note_lost(key,
                       fmt::format("{}: `train.scheduler: cosine` is used, which ends at zero, "
                                   "without a minimum",
                                   name));
}

void set_max_steps(Conversion& conversion, const SourceKey& key) {
  if (parse_int(key.value.text).value_or(1) > 0) conversion.set(key, "train.max_steps", key.value);
}

/// Off beside FSDP's own checkpointing, which is the same here.
void set_checkpointing(Conversion& conversion, const SourceKey& key) {
  if (const std::string_view fsdp = fsdp_checkpointing_key(conversion);
      is_off(key.value) && !fsdp.empty())
    return conversion.note_no_meaning(key, fmt::format("`{}` turns it on", fsdp));
  if (const auto truth = parse_bool(key.value.text))
    return conversion.set(key, "train.gradient_checkpointing", *truth ? "true" : "false");
  if (key.value.text == "offload") return set_offload_of_activations(conversion, key);
  conversion.set(key, "train.gradient_checkpointing", "true");
  if (key.value.text.starts_with("offload"))
    conversion.note_lost(key,
                         "`parallel.offload.activations` keeps them in host memory, not on disks");
}

void set_bf16(Conversion& conversion, const SourceKey& key) {
  if (ascii_lower(key.value.text) == "auto" || ascii_lower(key.value.text) == "full")
    return conversion.set(key, "model.dtype", key.value.text == "auto" ? "auto" : "bf16");
  conversion.set(key, "train.bf16", key.value);
}

void set_warmup_steps(Conversion& conversion, const SourceKey& key) {
  const auto steps = parse_double(key.value.text);
  if (!steps || *steps < 0 || *steps >= 1)
    return conversion.set(key, "train.warmup_steps", key.value);
  if (*steps > 0)
    conversion.set(key, "train.warmup_ratio", key.value);
  else if (!conversion.find("warmup_ratio"))
    conversion.set(key, "train.warmup_steps", "0");
}

void set_warmup_ratio(Conversion& conversion, const SourceKey& key) {
  const auto steps = conversion.find("warmup_steps");
  if (!steps || parse_double(steps->value.text).value_or(0) <= 0)
    return conversion.set(key, "train.warmup_ratio", key.value);
  if (!is_off(key.value)) conversion.note_lost(key, "`warmup_steps` of the file is used instead");
}

std::string eval_strategy_of(const Conversion& conversion) {
  const auto key = conversion.find("eval_strategy");
  return ascii_lower(key ? key->value.text : conversion.text_of("evaluation_strategy"));
}

void complete_eval_steps(Conversion& conversion, int64_t logging_steps) {
  if (eval_strategy_of(conversion) != "steps" || conversion.has("train.eval_steps")) return;
  const auto given = parse_int(conversion.text_of("logging_steps"));
  conversion.set_default("train.eval_steps", fmt::format("{}", given.value_or(logging_steps)));
}

namespace {

/// What a run does without the value of `key`.
std::string without_steps(const Conversion& conversion, std::string_view key) {
  if (key == "logging_steps") return "each step has a line in the log";
  if (key == "save_steps") return "checkpoints are written every 10 minutes (train.save_every)";
  return eval_strategy_of(conversion) == "steps"
             ? "evaluations follow train.eval_steps of this YAML"
             : "each epoch ends with an evaluation";
}

}  // namespace

void set_steps(Conversion& conversion, const SourceKey& key) {
  const std::string field = "train." + key.name;
  const double share = parse_double(key.value.text).value_or(1);
  if (share <= 0 || share >= 1) return conversion.set(key, field, key.value);
  const int64_t all = parse_int(conversion.text_of("max_steps")).value_or(0);
  if (all > 0)
    return conversion.set(
        key, field, fmt::format("{}", std::llround(std::ceil(static_cast<double>(all) * share))));
  conversion.note_lost(
      key,
      fmt::format("it is a share of all steps, whose number is not known yet. Until it is set, {}. "
                  "Set {} to {} times the optimizer steps that `sftrun train --dry-run` prints",
                  without_steps(conversion, key.name), field, key.value.text));
}

void set_save_steps(Conversion& conversion, const SourceKey& key) {
  const auto strategy = conversion.find("save_strategy");
  if (strategy && ascii_lower(strategy->value.text) != "steps")
    return conversion.note_no_meaning(key, "only used with save_strategy steps");
  if (!is_off(key.value)) set_steps(conversion, key);
}

void set_save_strategy(Conversion& conversion, const SourceKey& key) {
  const std::string word = ascii_lower(key.value.text);
  if (word == "no" || parse_bool(word) == false)
    return conversion.set(key, "train.save_every", "0");
  if (word == "best")
    conversion.set(key, "train.load_best_model_at_end", "true");
  else
    conversion.set(key, "train.save_strategy", key.value);
  // As there, no others in between, which save_total_limit would count.
  if (word == "best" || word == "epoch") conversion.set(key, "train.save_every", "0");
  constexpr const char* kUsualSteps = "500";  // of transformers
  const bool is_open = !conversion.find("save_steps") && !conversion.find("saves_per_epoch");
  if (word == "steps" && is_open) conversion.set_default("train.save_steps", kUsualSteps);
}

void set_mode(Conversion& conversion, const SourceKey& key, std::span<const WordPair> modes) {
  if (is_off(key.value)) return;
  const std::string name = ascii_lower(key.value.text);
  const auto found = std::find_if(modes.begin(), modes.end(),
                                  [&](const WordPair& pair) { return pair.theirs == name; });
  if (found != modes.end()) return conversion.set(key, "tuning.mode", found->ours);
  conversion.refuse(
      key, fmt::format("`{}` is {}, which is not supported", key.name, describe(key.value)),
      "`tuning.mode` takes lora, qlora, full and partial: use the tool itself for other adapters");
}

namespace {

bool is_data_file(std::string path) {
  path = ascii_lower(std::move(path));
  for (const std::string_view packed : {".gz", ".zst"})
    if (path.ends_with(packed)) path.resize(path.size() - packed.size());
  constexpr auto kEndings = std::to_array<std::string_view>(
      {".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".txt"});
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return path.ends_with(ending); });
}

/// @return what the data set cannot have; "": nothing
std::string split_source(nlohmann::ordered_json& source, const std::string& split) {
  if (split.empty()) return {};
  const size_t bracket = std::min(split.find('['), split.size());
  const std::string name = split.substr(0, bracket), slice = split.substr(bracket);
  const bool is_file = is_data_file(source["path"].get<std::string>());
  if (!is_file && !name.empty()) source["split"] = name;
  if (is_file && name != "train") return fmt::format("split {}: a file has no splits", split);
  if (slice.empty()) return {};
  const auto count = slice.starts_with("[:") && slice.ends_with(']')
                         ? parse_int(slice.substr(2, slice.size() - 3))
                         : std::optional<int64_t>();
  if (!count || *count < 1)
    return fmt::format("split {}: `max_samples` takes the first records, as in [:100]", split);
  source["max_samples"] = *count;
  return {};
}

}  // namespace

std::string set_split(Conversion& conversion, nlohmann::ordered_json& source,
                      const std::string& split) {
  std::string lost = split_source(source, split);
  if (!lost.empty()) conversion.lost_splits.insert(source["path"].get<std::string>());
  return lost;
}

void take_back_evaluations(Conversion& conversion, const std::string& why) {
  for (const char* field : {"train.eval_strategy", "train.eval_steps", "train.eval_on_start"})
    conversion.take_back(field, why);
}

const Value& single_value(const Value& value) {
  return value.kind == Value::Kind::kList && value.items.size() == 1 ? value.items[0] : value;
}

void leave_out(nlohmann::ordered_json& fields, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const bool is_used = std::any_of(fields.begin(), fields.end(),
                                     [&](const auto& column) { return column == name; });
    if (!is_used && !fields.contains(name)) fields[name] = "";
  }
}

}  // namespace sftrun::foreign
