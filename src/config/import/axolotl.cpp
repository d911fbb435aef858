#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "import/fsdp.h"
#include "import/templates.h"
#include "sftrun/core/strings.h"

/// Axolotl's YAML: https://docs.axolotl.ai/docs/config-reference.html. Keys that mean the same
/// whatever their value are in the table of foreign keys (foreign_key_table.cpp).
namespace sftrun::config::importing {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kOwnTokenizer = "the model's own tokenizer is used";
constexpr std::string_view kAxolotlUnits = "each layer is a unit that is gathered and released";

constexpr auto kAxolotlModes = std::to_array<WordPair>({{"lora", "lora"}, {"qlora", "qlora"}});
constexpr auto kAxolotlObjectives = std::to_array<WordPair>({{"dpo", "dpo"}});
constexpr auto kAxolotlInputs = std::to_array<WordPair>({{"true", "all"}, {"false", ""}});
constexpr auto kAxolotlLinear = std::to_array<WordPair>({{"true", "all-linear"}, {"false", ""}});
constexpr auto kAxolotlThinking = std::to_array<WordPair>({{"true", "split"}, {"false", ""}});

std::string text_in(const Value& map, std::string_view name) {
  const Value* value = value_at(map, name);
  return value == nullptr ? "" : value->text;
}

/// The name of a format here; "": auto finds it.
std::string axolotl_format(const std::string& type) {
  if (type.starts_with("chat_template")) return "messages";
  if (type.starts_with("sharegpt")) return "sharegpt";
  if (type.starts_with("alpaca")) return "alpaca";
  if (type == "completion") return "text";
  return "";
}

/// Column names of a data set; `roles` maps our names to lists of theirs, and becomes the reverse.
Json axolotl_fields(const Value& source) {
  constexpr auto kColumns =
      std::to_array<WordPair>({{"field_messages", "messages"},
                               {"field_tools", "tools"},
                               {"field_system", "system"},
                               {"field_chosen", "chosen"},
                               {"field_rejected", "rejected"},
                               {"field", "text"},
                               {"message_field_role", "role"},
                               {"message_field_content", "content"},
                               {"message_property_mappings.role", "role"},
                               {"message_property_mappings.content", "content"},
                               {"type.field_instruction", "instruction"},
                               {"type.field_input", "input"},
                               {"type.field_output", "output"},
                               {"type.field_system", "system"}});
  Json fields = Json::object();
  for (const WordPair& column : kColumns)
    if (const std::string name = text_in(source, column.theirs); !name.empty())
      fields[std::string(column.ours)] = name;
  const Value* roles = value_at(source, "roles");
  if (roles == nullptr || roles->kind != Value::Kind::kMap) return fields;
  for (size_t i = 0; i < roles->keys.size(); ++i)
    for (const Value& theirs : roles->items[i].items)
      fields["roles"][theirs.text] = roles->keys[i].text;
  return fields;
}

/// The parts of a data set that have a use here.
Json axolotl_source(Reading& reading, const SourceKey& key, const Value& source) {
  constexpr auto kUsed = std::to_array<std::string_view>(
      {"path", "name", "split", "type", "ds_type", "data_files", "field", "field_messages",
       "field_tools", "field_system", "field_chosen", "field_rejected", "message_field_role",
       "message_field_content", "message_property_mappings", "roles"});
  Json result = {{"path", text_in(source, "path")}};
  const Value* files = value_at(source, "data_files");
  if (files != nullptr && files->kind == Value::Kind::kScalar) result["path"] = files->text;
  if (files != nullptr && files->items.size() == 1) result["path"] = files->items[0].text;
  if (files != nullptr && files->items.size() > 1)
    reading.note_lost(key, "data_files has several files: write one {path} for each in data.train");
  for (const char* same : {"name", "split"})
    if (const std::string text = text_in(source, same); !text.empty()) result[same] = text;
  if (const std::string format = axolotl_format(text_in(source, "type")); !format.empty())
    result["format"] = format;
  if (const Json fields = axolotl_fields(source); !fields.empty()) result["fields"] = fields;
  for (size_t i = 0; i < source.keys.size(); ++i) {
    const std::string& name = source.keys[i].text;
    if (std::find(kUsed.begin(), kUsed.end(), name) == kUsed.end() && !is_off(source.items[i]))
      reading.note_lost(
          key, fmt::format("{} of {} has no equivalent", name, result["path"].get<std::string>()));
  }
  return result;
}

void axolotl_sources(Reading& reading, const SourceKey& key, std::string_view field) {
  Json sources = Json::array();
  for (const Value& source : key.value.items)
    if (source.kind == Value::Kind::kMap) sources.push_back(axolotl_source(reading, key, source));
  if (sources.empty()) return reading.note_lost(key, "it is not a list of {path, type}");
  reading.set(key, field, value_from_json(sources));
}
void axolotl_datasets(Reading& reading, const SourceKey& key) {
  axolotl_sources(reading, key, "data.train");
}
void axolotl_test_datasets(Reading& reading, const SourceKey& key) {
  axolotl_sources(reading, key, "data.val");
}

void axolotl_evaluations(Reading& reading, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (key.value.text == "1") return reading.set(key, "train.eval_strategy", "epoch");
  reading.note_lost(key, "set train.eval_steps to a number of steps");
}

/// true, or where activations are kept.
void axolotl_activations(Reading& reading, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (key.value.text == "disk")
    return reading.note_lost(
        key, "`parallel.offload.activations` keeps them in host memory, not on disks");
  set_offload_of_activations(reading, key);
}

/// Keys of fsdp_config that name the strategy, with and without the beginning that FSDP 2 leaves
/// out.
constexpr auto kAxolotlSharding = std::to_array<std::string_view>(
    {"fsdp_config.fsdp_sharding_strategy", "fsdp_config.sharding_strategy",
     "fsdp_config.fsdp_reshard_after_forward", "fsdp_config.reshard_after_forward"});

void axolotl_later(Reading& /*reading*/, const SourceKey& /*key*/) {}

/// FSDP 2 has no key `fsdp`: its fsdp_config is enough.
void axolotl_finish(Reading& reading) {
  const auto section = reading.find("fsdp_config");
  if (!section) return;
  const std::vector<Value>& values = section->value.items;
  if (std::all_of(values.begin(), values.end(),
                  [](const Value& value) { return value.kind == Value::Kind::kNull; }))
    return;
  for (const std::string_view name : kAxolotlSharding) {
    const auto key = reading.find(name);
    if (!key) continue;
    const std::string_view strategy = strategy_of_fsdp(key->value.text);
    if (reading.has("parallel.strategy"))
      reading.note_no_meaning(*key, "the strategy is given already");
    else if (strategy.empty())
      reading.note_lost(*key, fmt::format("{} is not a strategy", describe(key->value)));
    else
      reading.set(*key, "parallel.strategy", strategy);
  }
  if (!reading.has("parallel.strategy")) reading.set(*section, "parallel.strategy", "fsdp");
}

void axolotl_deepspeed(Reading& reading, const SourceKey& key) {
  if (!is_off(key.value))
    reading.set(key, "parallel.deepspeed", reading.path_beside(key.value.text).string());
}

void axolotl_trainable(Reading& reading, const SourceKey& key) {
  if (key.value.items.empty()) return;
  reading.set(key, "tuning.mode", "partial");
  reading.set(key, "tuning.trainable", key.value);
}

/// Quantisation of a base beside plain LoRA; `adapter: qlora` already says 4 bits.
void axolotl_4bit(Reading& reading, const SourceKey& key) {
  if (!is_off(key.value) && reading.text_of("adapter") == "lora")
    reading.set(key, "tuning.quant", "nf4");
}
void axolotl_8bit(Reading& reading, const SourceKey& key) {
  if (!is_off(key.value)) reading.set(key, "tuning.quant", "int8");
}

constexpr auto kAxolotlRules = std::to_array<ImportRule>({
    words("adapter", "tuning.mode", kAxolotlModes),
    special("load_in_4bit", axolotl_4bit),
    special("load_in_8bit", axolotl_8bit),
    special("unfrozen_parameters", axolotl_trainable),
    words("lora_target_linear", "tuning.lora.target_modules", kAxolotlLinear),
    special("datasets", axolotl_datasets),
    special("test_datasets", axolotl_test_datasets),
    words("train_on_inputs", "data.loss_on", kAxolotlInputs),
    words("split_thinking", "data.thinking", kAxolotlThinking),
    field("group_by_length", "data.group_by_length"),
    special("chat_template", set_template),
    nothing("special_tokens.pad_token", "batches have no padding"),
    lost("special_tokens.*", kOwnTokenizer),
    special("bf16", set_bf16),
    special("gradient_checkpointing", set_checkpointing),
    special("evals_per_epoch", axolotl_evaluations),
    special("seed", set_seeds),
    words("rl", "train.objective", kAxolotlObjectives),
    field("device_map", "parallel.device_map"),
    special("fsdp", set_fsdp_words),
    nothing("fsdp_version", "FSDP 1 and 2 divide the same tensors"),
    special(kAxolotlSharding[0], axolotl_later),
    special(kAxolotlSharding[1], axolotl_later),
    special(kAxolotlSharding[2], axolotl_later),
    special(kAxolotlSharding[3], axolotl_later),
    offload_all("fsdp_config.fsdp_offload_params"),
    offload_all("fsdp_config.offload_params"),
    nothing("fsdp_config.*", kAxolotlUnits),
    special("activation_offloading", axolotl_activations),
    special("deepspeed", axolotl_deepspeed),
    special("ddp_timeout", set_seconds),
    nothing("save_safetensors", "files are always safetensors"),
});

constexpr auto kAxolotlSigns = std::to_array<std::string_view>(
    {"base_model", "datasets", "micro_batch_size", "sequence_len", "num_epochs", "adapter",
     "sample_packing", "val_set_size", "dataset_prepared_path"});

/// Values that Axolotl uses where a file says nothing, if they differ from those here.
constexpr auto kAxolotlDefaults = std::to_array<ToolDefault>({
    {"tuning.mode", "full"},
    {"data.packing", "false"},
    {"model.max_seq_len", "512"},
    {"train.epochs", "1", "train.max_steps"},
    {"train.batch_size", "1"},
    {"train.grad_accum", "1", "train.global_batch_size"},
});

}  // namespace

const ImportTable& axolotl_table() {
  static constexpr ImportTable table{.tool = ForeignTool::kAxolotl,
                                     .name = "Axolotl",
                                     .word = "axolotl",
                                     .rules = kAxolotlRules,
                                     .signs = kAxolotlSigns,
                                     .finish = axolotl_finish,
                                     .defaults = kAxolotlDefaults};
  return table;
}

}  // namespace sftrun::config::importing
