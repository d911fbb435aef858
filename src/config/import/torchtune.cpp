#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "import/offload.h"
#include "import/templates.h"
#include "sftrun/core/strings.h"

/// torchtune's YAML: a tree of Python objects (`_component_`) with their arguments.
namespace sftrun::config::importing {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFromFiles = "it is read from the model's files";
constexpr std::string_view kProfiler = "`sftrun train --profile 10-12` profiles steps";
constexpr std::string_view kAlwaysLoss = "the loss is the cross entropy of the labelled tokens";

constexpr std::string_view kDivides =
    "`parallel.strategy` says how the model is divided over the devices";

constexpr auto kTuneBases = std::to_array<WordPair>({{"true", "qlora"}, {"false", ""}});
constexpr auto kTuneLoss = std::to_array<WordPair>({{"true", "all"}, {"false", "assistant"}});

/// The last name of a component: "torchtune.models.llama3.lora_llama3_8b" gives "lora_llama3_8b".
std::string component_name(const SourceKey& key) {
  return key.value.text.substr(key.value.text.rfind('.') + 1);
}

void tune_model(Reading& reading, const SourceKey& key) {
  const std::string name = component_name(key);
  const bool is_qlora = name.starts_with("qlora_") || name.find("_qlora") != std::string::npos;
  const bool is_lora = name.starts_with("lora_") || name.find("_lora") != std::string::npos;
  const auto quantises = reading.find("model.quantize_base");
  if (quantises && parse_bool(quantises->value.text) == true) return;  // quantize_base says qlora
  reading.set(key, "tuning.mode", is_qlora ? "qlora" : is_lora ? "lora" : "full");
}

/// lora_attn_modules, apply_lora_to_mlp and apply_lora_to_output together name the modules.
void tune_attention_modules(Reading& reading, const SourceKey& key) {
  Json names = Json::array();
  for (const Value& item : key.value.items)
    names.push_back(item.text == "output_proj" ? "o_proj" : item.text);
  const auto is_on = [&](const char* name) { return parse_bool(reading.text_of(name)) == true; };
  if (is_on("model.apply_lora_to_mlp"))
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) names.push_back(name);
  if (is_on("model.apply_lora_to_output")) names.push_back("lm_head");
  reading.set(key, "tuning.lora.target_modules", value_from_json(names));
}

void tune_with_attention_modules(Reading& /*reading*/, const SourceKey& /*key*/) {}

/// A class of optimizers.
void tune_optimizer(Reading& reading, const SourceKey& key) {
  constexpr auto kClasses = std::to_array<WordPair>({{"adamw", "adamw"},
                                                     {"adamw8bit", "adamw_8bit"},
                                                     {"pagedadamw", "paged_adamw"},
                                                     {"pagedadamw8bit", "paged_adamw_8bit"},
                                                     {"sgd", "sgd"},
                                                     {"lion", "lion"},
                                                     {"adafactor", "adafactor"},
                                                     {"muon", "muon"}});
  const std::string name = ascii_lower(component_name(key));
  const auto* const found = std::find_if(kClasses.begin(), kClasses.end(),
                                         [&](const WordPair& pair) { return pair.theirs == name; });
  if (found != kClasses.end()) return reading.set(key, "train.optimizer", found->ours);
  reading.note_lost(
      key, fmt::format("{} is not an optimizer here (docs/optimizers.md)", component_name(key)));
}

void tune_betas(Reading& reading, const SourceKey& key) {
  if (key.value.items.size() != 2) return reading.note_lost(key, "it is not a list of two numbers");
  reading.set(key, "train.adam_beta1", key.value.items[0]);
  reading.set(key, "train.adam_beta2", key.value.items[1]);
}

/// get_cosine_schedule_with_warmup
void tune_schedule(Reading& reading, const SourceKey& key) {
  const std::string name = component_name(key);
  for (const char* schedule : {"cosine_with_restarts", "cosine", "linear", "constant_with_warmup",
                               "constant", "polynomial", "inverse_sqrt"})
    if (name.find(schedule) != std::string::npos)
      return reading.set(key, "train.scheduler", schedule);
  reading.note_lost(key, fmt::format("{} is not a schedule here", name));
}

/// Builders of data sets that torchtune has, and the names of their data on the hub.
void tune_dataset_of(Reading& reading, const SourceKey& key, std::string_view section,
                     std::string_view target) {
  constexpr auto kBuilders =
      std::to_array<WordPair>({{"alpaca_dataset", "tatsu-lab/alpaca"},
                               {"alpaca_cleaned_dataset", "yahma/alpaca-cleaned"},
                               {"slimorca_dataset", "Open-Orca/SlimOrca-Dedup"},
                               {"wikitext_dataset", "EleutherAI/wikitext_document_level"}});
  const auto text = [&](const char* name) {
    return reading.text_of(fmt::format("{}.{}", section, name));
  };
  Json source = Json::object();
  const std::string builder = component_name(key);
  const auto* const known =
      std::find_if(kBuilders.begin(), kBuilders.end(),
                   [&](const WordPair& pair) { return pair.theirs == builder; });
  if (known != kBuilders.end()) source["path"] = std::string(known->ours);
  if (!text("source").empty()) source["path"] = text("source");
  if (!text("data_files").empty()) source["path"] = text("data_files");
  if (!source.contains("path"))
    return reading.note_lost(key, fmt::format("set {} to the data of {}", target, builder));
  if (!text("split").empty()) source["split"] = text("split");
  if (builder.starts_with("alpaca")) source["format"] = "alpaca";
  if (text("conversation_style") == "sharegpt") source["format"] = "sharegpt";
  Json fields = Json::object();
  if (!text("conversation_column").empty()) fields["messages"] = text("conversation_column");
  if (!text("column").empty()) fields["text"] = text("column");
  if (const auto columns = reading.find(fmt::format("{}.column_map", section)))
    for (size_t i = 0; i < columns->value.keys.size(); ++i)
      fields[columns->value.keys[i].text] = columns->value.items[i].text;
  if (!fields.empty()) source["fields"] = fields;
  reading.set(key, target, value_from_json(Json::array({source})));
  const bool trains_on_input = builder == "alpaca_dataset" || builder == "alpaca_cleaned_dataset";
  if (section == "dataset" && trains_on_input && !reading.find_named("dataset.train_on_input"))
    reading.set(key, "data.loss_on", "all");
}
void tune_dataset(Reading& reading, const SourceKey& key) {
  tune_dataset_of(reading, key, "dataset", "data.train");
}
void tune_validation(Reading& reading, const SourceKey& key) {
  tune_dataset_of(reading, key, "dataset_val", "data.val");
}
void tune_with_dataset(Reading& /*reading*/, const SourceKey& /*key*/) {}

void tune_device(Reading& reading, const SourceKey& key) {
  if (key.value.text == "cpu") reading.launch.devices = "cpu";
}

void tune_logger(Reading& reading, const SourceKey& key) {
  const std::string name = component_name(key);
  reading.set(key, "output.tensorboard", name == "TensorBoardLogger" ? "true" : "false");
  if (name == "WandBLogger" || name == "CometLogger")
    reading.note_lost(key, "metrics.jsonl holds every step; there are no other trackers");
}

constexpr auto kTorchtuneRules = std::to_array<ImportRule>({
    special("model._component_", tune_model),
    special("model.lora_attn_modules", tune_attention_modules),
    special("model.apply_lora_to_mlp", tune_with_attention_modules),
    special("model.apply_lora_to_output", tune_with_attention_modules),
    field("model.lora_rank", "tuning.lora.r"),
    field("model.lora_alpha", "tuning.lora.alpha"),
    field("model.lora_dropout", "tuning.lora.dropout"),
    field("model.use_dora", "tuning.lora.dora"),
    words("model.quantize_base", "tuning.mode", kTuneBases),
    nothing("tokenizer._component_", kFromFiles),
    nothing("tokenizer.path", kFromFiles),
    nothing("tokenizer.merges_file", kFromFiles),
    field("tokenizer.max_seq_len", "model.max_seq_len"),
    field("max_seq_len", "model.max_seq_len"),
    lost("tokenizer.prompt_template", "`model.chat_template` takes a Jinja template"),
    field("checkpointer.checkpoint_dir", "model.name"),
    nothing("checkpointer.output_dir", "results are in the run directory"),
    nothing("checkpointer.*", kFromFiles),
    special("dataset._component_", tune_dataset),
    field("dataset.packed", "data.packing"),
    words("dataset.train_on_input", "data.loss_on", kTuneLoss),
    special("dataset.source", tune_with_dataset),
    special("dataset.data_files", tune_with_dataset),
    special("dataset.split", tune_with_dataset),
    special("dataset.column", tune_with_dataset),
    special("dataset.column_map", tune_with_dataset),
    special("dataset.conversation_column", tune_with_dataset),
    special("dataset.conversation_style", tune_with_dataset),
    lost("dataset.new_system_prompt", "write the system message in the records"),
    special("dataset_val._component_", tune_validation),
    special("dataset_val.source", tune_with_dataset),
    special("dataset_val.data_files", tune_with_dataset),
    special("dataset_val.split", tune_with_dataset),
    special("dataset_val.column_map", tune_with_dataset),
    special("dataset_val.conversation_column", tune_with_dataset),
    special("dataset_val.conversation_style", tune_with_dataset),
    field("shuffle", "data.shuffle"),
    special("seed", set_seeds),
    special("optimizer._component_", tune_optimizer),
    field("optimizer.lr", "train.learning_rate"),
    field("optimizer.weight_decay", "train.weight_decay"),
    field("optimizer.eps", "train.adam_epsilon"),
    field("optimizer.momentum", "train.momentum"),
    special("optimizer.betas", tune_betas),
    nothing("optimizer.fused", "optimizers are always fused"),
    special("lr_scheduler._component_", tune_schedule),
    field("lr_scheduler.num_warmup_steps", "train.warmup_steps"),
    nothing("loss", kAlwaysLoss),
    field("dtype", "model.dtype"),
    special("device", tune_device),
    special("metric_logger._component_", tune_logger),
    nothing("metric_logger.*", "event files are in the run directory"),
    nothing("profiler.*", kProfiler),
    nothing("collate_fn", "batches have no padding"),
    offload_all("fsdp_cpu_offload"),
    offload_activations("enable_activation_offloading"),
    lost("tensor_parallel_dim", kDivides, "1"),
    lost("context_parallel_dim", kDivides, "1"),
    lost("data_parallel_replicate_dim", kDivides, "1"),
    lost("data_parallel_shard_dim", kDivides, "-1"),
});

/// Without a limit nothing is cut off there.
void tune_finish(Reading& reading) {
  for (const char* name : {"tokenizer.max_seq_len", "max_seq_len"}) {
    const auto key = reading.find_named(name);
    if (!key || key->value.kind != Value::Kind::kNull) continue;
    reading.note_lost(*key,
                      "there is always a limit: set `model.max_seq_len` to the longest example");
  }
}

constexpr auto kTorchtuneSigns =
    std::to_array<std::string_view>({"checkpointer", "tokenizer", "metric_logger", "loss",
                                     "max_steps_per_epoch", "enable_activation_checkpointing"});

/// The modes of a model do not depend on the order of its keys; what a file does not say is as in
/// torchtune.
constexpr auto kTorchtuneDefaults = std::to_array<ToolDefault>({
    {"tuning.mode", "full"},
    {"data.packing", "false"},
    {"train.grad_accum", "1"},
    {"train.scheduler", "constant"},
    {"train.max_grad_norm", "0"},
});

}  // namespace

const ImportTable& torchtune_table() {
  static constexpr ImportTable table{.tool = ForeignTool::kTorchtune,
                                     .name = "torchtune",
                                     .word = "torchtune",
                                     .rules = kTorchtuneRules,
                                     .signs = kTorchtuneSigns,
                                     .finish = tune_finish,
                                     .defaults = kTorchtuneDefaults,
                                     .has_interpolation = true};
  return table;
}

}  // namespace sftrun::config::importing
