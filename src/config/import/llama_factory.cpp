#include <fmt/format.h>

#include <array>

#include "import/fsdp.h"
#include "import/templates.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"
#include "yaml_reader.h"

/// LLaMA-Factory's YAML (its hparams classes, and dataset_info.json).
namespace sftrun::config::importing {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kFactoryModes =
    std::to_array<WordPair>({{"lora", "lora"}, {"full", "full"}, {"freeze", "partial"}});
constexpr auto kFactoryStages =
    std::to_array<WordPair>({{"sft", "sft"}, {"pt", "sft"}, {"dpo", "dpo"}});
constexpr auto kFactoryPrompts = std::to_array<WordPair>({{"true", "all"}, {"false", ""}});
constexpr auto kFactoryHistory =
    std::to_array<WordPair>({{"true", "last_assistant"}, {"false", ""}});
constexpr auto kFactoryInits = std::to_array<WordPair>({{"true", "pissa"}, {"false", ""}});
constexpr auto kFactoryShuffle = std::to_array<WordPair>({{"true", "false"}, {"false", ""}});

void factory_target(Reading& reading, const SourceKey& key) {
  if (ascii_lower(key.value.text) == "all")
    return reading.set(key, "tuning.lora.target_modules", "all-linear");
  if (key.value.kind != Value::Kind::kScalar)
    return reading.set(key, "tuning.lora.target_modules", key.value);
  Json names = Json::array();
  for (const std::string& name : split(key.value.text, ','))
    names.push_back(std::string(trim(name)));
  reading.set(key, "tuning.lora.target_modules", value_from_json(names));
}

void factory_bits(Reading& reading, const SourceKey& key) {
  if (key.value.text == "4") return reading.set(key, "tuning.quant", "nf4");
  if (key.value.text == "8") return reading.set(key, "tuning.quant", "int8");
  if (!is_off(key.value)) reading.note_lost(key, "a base has 4 or 8 bits: `tuning.quant`");
}

void factory_quantization_method(Reading& reading, const SourceKey& key) {
  const std::string method = ascii_lower(key.value.text);
  if (method == "bnb" || method == "bitsandbytes")
    return reading.note_no_meaning(key, "`tuning.quant` nf4, fp4 and int8 are bitsandbytes'");
  reading.note_lost(key, "`tuning.quant` takes nf4, fp4, int8 and fp8");
}

/// The loss of stage dpo.
void factory_preference(Reading& reading, const SourceKey& key) {
  if (ascii_lower(key.value.text) == "sigmoid")
    return reading.note_no_meaning(key, "it is the loss of `train.objective: dpo`");
  if (reading.text_of("stage") != "dpo")
    return reading.note_no_meaning(key, "only of use with stage dpo");
  reading.note_lost(
      key, fmt::format("`train.objective: dpo` has the loss sigmoid, not {}", describe(key.value)));
}

/// Packing in which examples do not see each other, which LLaMA-Factory turns packing on for.
void factory_neat_packing(Reading& reading, const SourceKey& key) {
  if (is_off(key.value)) return;
  const auto packing = reading.find("packing");
  if (!packing) return reading.set(key, "data.packing", "true");
  if (parse_bool(packing->value.text) == true)
    return reading.note_no_meaning(key, "packed examples never see each other");
  reading.note_lost(key, "packing is false: set `data.packing: true`");
}

void factory_deepspeed(Reading& reading, const SourceKey& key) {
  if (!is_off(key.value))
    reading.set(key, "parallel.deepspeed", reading.path_beside(key.value.text).string());
}

/// Column names of an entry of dataset_info.json.
Json factory_fields(const Value& entry) {
  constexpr auto kColumns = std::to_array<WordPair>({{"columns.prompt", "instruction"},
                                                     {"columns.query", "input"},
                                                     {"columns.response", "output"},
                                                     {"columns.system", "system"},
                                                     {"columns.messages", "messages"},
                                                     {"columns.tools", "tools"},
                                                     {"columns.chosen", "chosen"},
                                                     {"columns.rejected", "rejected"},
                                                     {"tags.role_tag", "role"},
                                                     {"tags.content_tag", "content"}});
  constexpr auto kRoles = std::to_array<WordPair>({{"tags.user_tag", "user"},
                                                   {"tags.assistant_tag", "assistant"},
                                                   {"tags.system_tag", "system"},
                                                   {"tags.observation_tag", "tool"}});
  Json fields = Json::object();
  const auto copy = [&](const auto& pairs, const auto& put) {
    for (const WordPair& pair : pairs) {
      const Value* value = value_at(entry, pair.theirs);
      if (value != nullptr && !value->text.empty()) put(pair.ours, value->text);
    }
  };
  copy(kColumns, [&](std::string_view ours, const std::string& theirs) {
    fields[std::string(ours)] = theirs;
  });
  copy(kRoles, [&](std::string_view ours, const std::string& theirs) {
    fields["roles"][theirs] = std::string(ours);
  });
  return fields;
}

/// A data set by its entry of dataset_info.json; its files are beside that file.
Json factory_source(const std::filesystem::path& folder, const Value& entry) {
  const auto text = [&](const char* name) {
    const Value* value = value_at(entry, name);
    return value == nullptr ? std::string() : value->text;
  };
  Json source = Json::object();
  source["path"] = text("hf_hub_url");
  if (!text("file_name").empty()) source["path"] = (folder / text("file_name")).string();
  if (!text("subset").empty()) source["name"] = text("subset");
  if (!text("split").empty()) source["split"] = text("split");
  const bool is_ranking = parse_bool(text("ranking")) == true;
  source["format"] = is_ranking                         ? "preference"
                     : text("formatting") == "sharegpt" ? "sharegpt"
                                                        : "alpaca";
  if (const Json fields = factory_fields(entry); !fields.empty()) source["fields"] = fields;
  return source;
}

void factory_sources(Reading& reading, const SourceKey& key, std::string_view field) {
  const auto given = reading.find("dataset_dir");
  const std::filesystem::path folder = reading.path_beside(given ? given->value.text : "data");
  const std::filesystem::path info = folder / "dataset_info.json";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(info, ignored))
    return reading.note_lost(key, fmt::format("{} was not found: set {} to the files of {}",
                                              info.string(), field, key.value.text));
  Problems problems;
  const Value entries = parse_yaml(read_text_file(info), info.string(), problems);
  reading.problems.insert(reading.problems.end(), problems.begin(), problems.end());
  Json sources = Json::array();
  for (const std::string& word : split(key.value.text, ',')) {
    const std::string name(trim(word));
    const Value* entry = name.find('.') == std::string::npos ? value_at(entries, name) : nullptr;
    if (entry == nullptr)
      reading.refuse(
          key, fmt::format("`{}` has `{}`, which {} does not list", key.name, name, info.string()),
          "correct the name, or dataset_dir");
    else
      sources.push_back(factory_source(folder, *entry));
  }
  if (!sources.empty()) reading.set(key, field, value_from_json(sources));
}
void factory_dataset(Reading& reading, const SourceKey& key) {
  factory_sources(reading, key, "data.train");
}
void factory_eval_dataset(Reading& reading, const SourceKey& key) {
  factory_sources(reading, key, "data.val");
}

constexpr auto kFactoryRules = std::to_array<ImportRule>({
    words("finetuning_type", "tuning.mode", kFactoryModes),
    words("stage", "train.objective", kFactoryStages),
    special("lora_target", factory_target),
    special("quantization_bit", factory_bits),
    special("quantization_method", factory_quantization_method),
    words("pissa_init", "tuning.lora.init", kFactoryInits),
    special("dataset", factory_dataset),
    special("eval_dataset", factory_eval_dataset),
    nothing("dataset_dir", "it is a part of the paths in data.train"),
    words("train_on_prompt", "data.loss_on", kFactoryPrompts),
    words("mask_history", "data.loss_on", kFactoryHistory),
    words("disable_shuffling", "data.shuffle", kFactoryShuffle),
    field("streaming", "data.streaming"),
    field("packing", "data.packing"),
    special("neat_packing", factory_neat_packing),
    special("pref_loss", factory_preference),
    field("group_by_length", "data.group_by_length"),
    lost("max_samples", "give each entry of data.train its max_samples"),
    special("template", set_template),
    special("bf16", set_bf16),
    special("gradient_checkpointing", set_checkpointing),
    special("seed", set_seeds),
    special("report_to", set_report_to),
    special("ddp_timeout", set_seconds),
    special("deepspeed", factory_deepspeed),
    special("fsdp", set_fsdp_words),
    nothing("cache_dir", "HF_HUB_CACHE in the environment names the cache"),
    nothing("overwrite_output_dir", "the flag --overwrite starts a run from the beginning"),
});

constexpr auto kFactorySigns =
    std::to_array<std::string_view>({"model_name_or_path", "finetuning_type", "stage", "template",
                                     "cutoff_len", "dataset", "lora_target"});

/// Values that LLaMA-Factory uses where a file says nothing, if they differ from those here.
constexpr auto kFactoryDefaults = std::to_array<ToolDefault>({
    {"tuning.lora.r", "8"},
    {"data.packing", "false"},
    {"train.learning_rate", "5e-5"},
    {"train.batch_size", "8"},
    {"train.grad_accum", "1", "train.global_batch_size"},
    {"train.scheduler", "linear"},
    {"train.warmup_steps", "0", "train.warmup_ratio"},
});

/// lora_alpha is twice the rank by default; stage pt trains on every token of plain text.
void factory_finish(Reading& reading) {
  if (const auto rank = reading.count_of("lora_rank", 1); !reading.has("tuning.lora.alpha")) {
    constexpr int64_t kRank = 8;
    reading.set_default("tuning.lora.alpha", fmt::format("{}", 2 * rank.value_or(kRank)));
  }
  if (const auto stage = reading.find("stage"); stage && stage->value.text == "pt") {
    reading.set(*stage, "data.format", "text");
    reading.set(*stage, "data.loss_on", "all");
  }
  if (reading.text_of("finetuning_type") == "freeze")
    reading.note_lost(*reading.find("finetuning_type"),
                      "name the layers that train in tuning.trainable");
}

}  // namespace

const ImportTable& llama_factory_table() {
  static constexpr ImportTable table{.tool = ForeignTool::kLlamaFactory,
                                     .name = "LLaMA-Factory",
                                     .word = "llama-factory",
                                     .rules = kFactoryRules,
                                     .signs = kFactorySigns,
                                     .finish = factory_finish,
                                     .defaults = kFactoryDefaults};
  return table;
}

}  // namespace sftrun::config::importing
