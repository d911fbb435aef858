#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "offload.h"
#include "preference.h"
#include "sftrun/config/optimizers.h"
#include "sftrun/core/strings.h"
#include "templates.h"

/// Values of torchtune's YAML that have another form here: its components (tools/torchtune.yaml).
namespace sftrun::foreign {

extern const std::string_view kTorchtuneTable;  // its table

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kAlwaysLoss = "the loss is the cross entropy of the labelled tokens";

constexpr auto kTuneSizes =
    std::to_array<WordPair>({{"tensor_parallel_dim", "parallel.tp"},
                             {"context_parallel_dim", "parallel.cp"},
                             {"data_parallel_replicate_dim", "parallel.dp_replicate"},
                             {"data_parallel_shard_dim", "parallel.dp_shard"}});

/// The size of an axis; -1 (shards) is what the other sizes leave.
void tune_size(Conversion& conversion, const SourceKey& key) {
  if (key.value.text == "-1" || key.value.text == "1") return;
  if (!conversion.count_of(key.name, 1)) return;
  for (const WordPair& size : kTuneSizes)
    if (key.name == size.theirs) conversion.set(key, std::string(size.ours), key.value);
}

/// The processes that the sizes need, if no axis has what the others leave.
void set_processes_of_sizes(Conversion& conversion) {
  const auto shards = parse_int(conversion.text_of("data_parallel_shard_dim"));
  if (shards.value_or(-1) < 1) return;
  int64_t processes = 1;
  for (const WordPair& size : kTuneSizes)
    processes *= conversion.find(size.theirs) ? conversion.count_of(size.theirs, 1).value_or(1) : 1;
  if (processes > 1) conversion.launch.processes = processes;
}

/// The last name of a component: "torchtune.models.llama3.lora_llama3_8b" gives "lora_llama3_8b".
std::string component_name(const SourceKey& key) {
  return key.value.text.substr(key.value.text.rfind('.') + 1);
}

void tune_model(Conversion& conversion, const SourceKey& key) {
  const std::string name = component_name(key);
  const bool is_qlora = name.starts_with("qlora_") || name.find("_qlora") != std::string::npos;
  const bool is_lora = name.starts_with("lora_") || name.find("_lora") != std::string::npos;
  const auto quantises = conversion.find("model.quantize_base");
  if (quantises && parse_bool(quantises->value.text) == true) return;  // quantize_base says qlora
  conversion.set(key, "tuning.mode", is_qlora ? "qlora" : is_lora ? "lora" : "full");
}

/// lora_attn_modules, apply_lora_to_mlp and apply_lora_to_output together name the modules.
void tune_attention_modules(Conversion& conversion, const SourceKey& key) {
  Json names = Json::array();
  for (const Value& item : key.value.items)
    names.push_back(item.text == "output_proj" ? "o_proj" : item.text);
  const auto is_on = [&](const char* name) { return parse_bool(conversion.text_of(name)) == true; };
  if (is_on("model.apply_lora_to_mlp"))
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) names.push_back(name);
  if (is_on("model.apply_lora_to_output")) names.push_back("lm_head");
  conversion.set(key, "tuning.lora.target_modules", value_from_json(names));
}

/// A class of optimizers: PagedAdamW8bit is paged_adamw_8bit.
void tune_optimizer(Conversion& conversion, const SourceKey& key) {
  const std::string name = ascii_lower(component_name(key));
  for (const config::OptimizerInfo& info : config::kOptimizers)
    if (join(split(info.name, '_'), "") == name)
      return conversion.set(key, "train.optimizer", info.name);
  conversion.note_unused(
      key, fmt::format("{} is not an optimizer here (docs/optimizers.md)", component_name(key)),
      "train.optimizer");
}

void tune_betas(Conversion& conversion, const SourceKey& key) {
  if (key.value.items.size() != 2)
    return conversion.note_lost(key, "it is not a list of two numbers");
  conversion.set(key, "train.adam_beta1", key.value.items[0]);
  conversion.set(key, "train.adam_beta2", key.value.items[1]);
}

/// get_cosine_schedule_with_warmup
void tune_schedule(Conversion& conversion, const SourceKey& key) {
  const std::string name = component_name(key);
  for (const char* schedule : {"cosine_with_restarts", "cosine", "linear", "constant_with_warmup",
                               "constant", "polynomial", "inverse_sqrt"})
    if (name.find(schedule) != std::string::npos)
      return conversion.set(key, "train.scheduler", schedule);
  conversion.note_unused(key, fmt::format("{} is not a schedule here", name), "train.scheduler");
}

/// A builder of data sets: the data that it reads, unless the file names others, and their form.
struct TuneBuilder {
  std::string_view name, path, subset, format;
  std::span<const WordPair> columns = {};  ///< its own names of columns, and ours
  std::string_view note = {};
};

constexpr std::string_view kPlainTunePairs =
    "torchtune puts these strings into a chat template; here strings are trained on as they are: "
    "write prompt, chosen and rejected as lists of messages";

constexpr std::string_view kOwnTunePrompt =
    "torchtune puts these records into a prompt text of its own; here they go through the model's "
    "chat template";

constexpr auto kTuneInstruct =
    std::to_array<WordPair>({{"input", "instruction"}, {"output", "output"}});
constexpr auto kTuneDialogue =
    std::to_array<WordPair>({{"dialogue", "instruction"}, {"summary", "output"}});
constexpr auto kTuneExchange = std::to_array<WordPair>(
    {{"question", "prompt"}, {"response_j", "chosen"}, {"response_k", "rejected"}});
constexpr auto kTunePage = std::to_array<WordPair>({{"page", "text"}});
constexpr auto kTuneArticle = std::to_array<WordPair>({{"article", "text"}});

constexpr auto kTuneBuilders = std::to_array<TuneBuilder>({
    {"alpaca_dataset", "tatsu-lab/alpaca", "", "alpaca", {}, kOwnTunePrompt},
    {"alpaca_cleaned_dataset", "yahma/alpaca-cleaned", "", "alpaca", {}, kOwnTunePrompt},
    {"grammar_dataset", "liweili/c4_200m", "", "alpaca", kTuneInstruct},
    {"samsum_dataset", "Samsung/samsum", "", "alpaca", kTuneDialogue},
    {"instruct_dataset", "", "", "alpaca", kTuneInstruct},
    {"chat_dataset", "", "", "messages"},
    {"slimorca_dataset", "Open-Orca/SlimOrca-Dedup", "", "sharegpt"},
    {"text_completion_dataset", "", "", "text"},
    {"wikitext_dataset", "EleutherAI/wikitext_document_level", "wikitext-103-v1", "text",
     kTunePage},
    {"cnn_dailymail_articles_dataset", "ccdv/cnn_dailymail", "3.0.0", "text", kTuneArticle},
    {"preference_dataset", "", "", "preference"},
    {"hh_rlhf_helpful_dataset", "RLHFlow/HH-RLHF-Helpful-standard", "", "preference"},
    {"stack_exchange_paired_dataset", "lvwerra/stack-exchange-paired", "", "preference",
     kTuneExchange, kPlainTunePairs},
});

/// One data set of a file.
class TuneDataset {
 public:
  TuneDataset(Conversion& conversion, const SourceKey& key, const Value& section)
      : conversion_(conversion), key_(key), section_(section) {
    const std::string component = text("_component_");
    builder_name_ = component.substr(component.rfind('.') + 1);
    const auto* const found =
        std::find_if(kTuneBuilders.begin(), kTuneBuilders.end(),
                     [&](const TuneBuilder& one) { return one.name == builder_name_; });
    builder_ = found == kTuneBuilders.end() ? nullptr : found;
  }

  /// nullopt: it does not say where its data are, which is noted.
  std::optional<Json> source(std::string_view field) const {
    Json source = Json::object();
    if (builder_ != nullptr && !builder_->path.empty())
      source["path"] = std::string(builder_->path);
    if (!text("source").empty()) source["path"] = text("source");
    if (!text("data_files").empty()) source["path"] = text("data_files");
    if (!source.contains("path")) {
      note(fmt::format("set {} to its data", field));
      return std::nullopt;
    }
    const bool has_subset =
        builder_ != nullptr && !builder_->subset.empty() && text("source").empty();
    if (has_subset) source["name"] = std::string(builder_->subset);
    if (!text("name").empty()) source["name"] = text("name");
    if (const std::string what = set_split(conversion_, source, text("split")); !what.empty())
      note(what);
    if (builder_ == nullptr)
      note("this builder is not known: set `format` and `fields` of the data set");
    else
      source["format"] = std::string(format());
    if (const Json names = fields(); !names.empty()) source["fields"] = names;
    note_unread();
    return source;
  }

  std::string text(std::string_view name) const {
    const Value* value = value_at(section_, name);
    return value == nullptr ? std::string() : value->text;
  }
  const std::string& builder_name() const { return builder_name_; }

  bool is_packed() const { return parse_bool(text("packed")).value_or(false); }
  /// Whether `data.loss_on` is about its records: texts are trained on as a whole.
  bool has_labels() const {
    return builder_ == nullptr || (format() != "text" && format() != "preference");
  }
  /// Its value of `data.loss_on`; "": not said, which is the assistant's turns.
  std::string_view loss_on() const {
    constexpr auto kMasks = std::to_array<WordPair>({{"train_on_all", "all"},
                                                     {"train_on_assistant", "assistant"},
                                                     {"train_on_last", "last_assistant"}});
    for (const WordPair& mask : kMasks)
      if (text("masking_strategy") == mask.theirs) return mask.ours;
    if (const auto on_input = parse_bool(text("train_on_input")))
      return *on_input ? "all" : "assistant";
    const bool trains_all =
        builder_name_ == "alpaca_dataset" || builder_name_ == "alpaca_cleaned_dataset";
    return trains_all ? "all" : "";
  }

 private:
  void note(const std::string& what) const {
    conversion_.note_lost(key_, fmt::format("{}: {}", builder_name_, what));
  }

  std::string_view format() const {
    return text("conversation_style") == "sharegpt" ? "sharegpt" : builder_->format;
  }

  Json fields() const {
    Json fields = Json::object();
    const auto ours_of = [&](const std::string& theirs) {
      if (builder_ == nullptr) return theirs;
      for (const WordPair& column : builder_->columns)
        if (column.theirs == theirs) return std::string(column.ours);
      return theirs;
    };
    if (builder_ != nullptr)
      for (const WordPair& column : builder_->columns)
        fields[std::string(column.ours)] = std::string(column.theirs);
    const Value* map = value_at(section_, "column_map");
    for (size_t i = 0; map != nullptr && i < map->keys.size(); ++i)
      if (!map->items[i].text.empty()) fields[ours_of(map->keys[i].text)] = map->items[i].text;
    if (!text("conversation_column").empty()) fields["messages"] = text("conversation_column");
    if (!text("column").empty()) fields["text"] = text("column");
    const Json named = fields;
    for (auto it = fields.begin(); it != fields.end();)
      it = it.key() == it.value() ? fields.erase(it) : std::next(it);
    leave_out_unread(fields, named);
    return fields;
  }

  /// Columns that are read here if records have them. There only Alpaca's builders read an input.
  void leave_out_unread(Json& fields, const Json& named) const {
    if (builder_ == nullptr) return;
    const auto leave = [&](const char* name) {
      if (!named.contains(name)) leave_out(fields, {name});
    };
    if (format() == "alpaca" && !builder_->columns.empty()) leave("input");
    if (format() == "alpaca" || format() == "sharegpt") leave("system");
    if (format() == "messages" || format() == "sharegpt") leave("tools");
  }

  void note_unread() const {
    constexpr auto kRead = std::to_array<std::string_view>(
        {"_component_", "source", "data_files", "split", "name", "column", "column_map",
         "conversation_column", "conversation_style", "packed", "train_on_input",
         "masking_strategy", "max_seq_len", "trust_remote_code", "add_eos"});
    if (builder_ != nullptr && !builder_->note.empty()) note(std::string(builder_->note));
    const bool is_text = builder_ != nullptr && format() == "text";
    if (is_text && is_packed() && text("split_across_pack").empty())
      note(
          "split_across_pack: a text longer than a packed sequence is truncated here; torchtune "
          "continues it in the next one");
    for (size_t i = 0; i < section_.keys.size(); ++i) {
      const std::string& name = section_.keys[i].text;
      if (name == "add_eos" && parse_bool(section_.items[i].text) == false)
        note("add_eos False: the token that ends a text is added and trained on");
      else if (name == "max_seq_len" && !is_off(section_.items[i]) &&
               section_.items[i].text != limit())
        note("max_seq_len: `model.max_seq_len` applies to all data");
      else if (name == "new_system_prompt" && !is_off(section_.items[i]))
        note("new_system_prompt: write the system message in the records");
      else if (std::find(kRead.begin(), kRead.end(), name) == kRead.end() &&
               !is_off(section_.items[i]))
        note(fmt::format("{} has no equivalent", name));
    }
  }

  /// That of the tokenizer; a data set without one has no limit of its own.
  std::string limit() const { return conversion_.text_of("tokenizer.max_seq_len"); }

  Conversion& conversion_;
  const SourceKey& key_;
  const Value& section_;
  std::string builder_name_;
  const TuneBuilder* builder_ = nullptr;
};

/// What of the others is not as in the first data set, as it is of all data here.
std::string names_of_others(const std::vector<TuneDataset>& datasets, size_t first,
                            bool (*differs)(const TuneDataset&, const TuneDataset&)) {
  std::vector<std::string> names;
  for (size_t i = 0; i < datasets.size(); ++i)
    if (differs(datasets[first], datasets[i]))
      names.push_back(fmt::format("{} (number {})", datasets[i].builder_name(), i + 1));
  return join(names, ", ");
}

/// Whether the data sets are packed.
void tune_packing(Conversion& conversion, const SourceKey& key,
                  const std::vector<TuneDataset>& datasets) {
  const TuneDataset& first = datasets.front();
  if (parse_bool(first.text("packed")))
    conversion.set(key, "data.packing", first.is_packed() ? "true" : "false");
  const std::string others = names_of_others(
      datasets, 0,
      [](const TuneDataset& a, const TuneDataset& b) { return a.is_packed() != b.is_packed(); });
  if (!others.empty())
    conversion.note_lost(
        key,
        fmt::format(
            "packed: `data.packing` applies to all data, and is {} as for {}; it differs for {}",
            first.is_packed(), first.builder_name(), others));
}

std::string_view effective_loss_on(const TuneDataset& dataset) {
  return dataset.loss_on().empty() ? "assistant" : dataset.loss_on();
}

/// Which tokens the data sets train on: that of the first that is not of texts.
void tune_labels(Conversion& conversion, const SourceKey& key,
                 const std::vector<TuneDataset>& datasets) {
  const auto first = std::find_if(datasets.begin(), datasets.end(),
                                  [](const TuneDataset& one) { return one.has_labels(); });
  if (first == datasets.end()) return;
  if (!first->loss_on().empty()) conversion.set(key, "data.loss_on", first->loss_on());
  const std::string others =
      names_of_others(datasets, static_cast<size_t>(first - datasets.begin()),
                      [](const TuneDataset& a, const TuneDataset& b) {
                        return b.has_labels() && effective_loss_on(a) != effective_loss_on(b);
                      });
  if (!others.empty())
    conversion.note_lost(
        key, fmt::format(
                 "train_on_input, masking_strategy: `data.loss_on` applies to all data, and is {} "
                 "as for {}; the file trains on other tokens of {}. Train on them in separate runs",
                 effective_loss_on(*first), first->builder_name(), others));
}

/// A data set, or a list of them.
void tune_datasets(Conversion& conversion, const SourceKey& key, std::string_view field) {
  const std::vector<Value> one = {key.value};
  const std::vector<Value>& sections = key.value.kind == Value::Kind::kList ? key.value.items : one;
  std::vector<TuneDataset> datasets;
  for (const Value& section : sections)
    if (section.kind == Value::Kind::kMap) datasets.emplace_back(conversion, key, section);
  if (field == "data.train" && !datasets.empty()) {
    tune_packing(conversion, key, datasets);
    tune_labels(conversion, key, datasets);
  }
  Json sources = Json::array();
  for (const TuneDataset& dataset : datasets)
    if (auto source = dataset.source(field)) sources.push_back(std::move(*source));
  if (!sources.empty()) conversion.set(key, field, value_from_json(sources));
}
void tune_dataset(Conversion& conversion, const SourceKey& key) {
  tune_datasets(conversion, key, "data.train");
}
void tune_validation(Conversion& conversion, const SourceKey& key) {
  tune_datasets(conversion, key, "data.val");
}

/// A loss of preference training (torchtune/rlhf/loss/dpo.py): its name for beta, and the settings
/// that are not the defaults here.
struct TuneLoss {
  std::string_view name, beta;
  std::string_view usual_beta = {};  ///< its default; "": that of `train.beta`
  std::string_view loss_type = {};
  std::string_view note = {};  ///< what is not as in torchtune
};
constexpr auto kTuneLosses = std::to_array<TuneLoss>({
    {"DPOLoss", "beta"},
    {.name = "RSOLoss", .beta = "gamma", .loss_type = "hinge"},
    {.name = "IPOLoss",
     .beta = "tau",
     .note = "torchtune compares sums of log-probabilities; here they are means over the tokens of "
             "an answer, as in TRL: choose `train.beta` anew"},
    {.name = "SimPOLoss", .beta = "beta", .usual_beta = "2"},
});

/// The settings of a loss of preference training.
class TunePreference {
 public:
  TunePreference(Conversion& conversion, const SourceKey& key, const TuneLoss& loss)
      : conversion_(conversion), key_(key), loss_(loss) {}

  void apply() const {
    const ObjectiveInfo* own = config::find_objective_of_torchtune(loss_.name);
    const ObjectiveInfo& objective =
        own != nullptr ? *own : config::objective_info(config::Objective::kDpo);
    conversion_.set(key_, "train.objective", objective.name);
    if (!loss_.loss_type.empty()) conversion_.set(key_, "train.loss_type", loss_.loss_type);
    take(loss_.beta, "train.beta", loss_.usual_beta);
    if (objective.reads("train.simpo_gamma")) take("gamma", "train.simpo_gamma", "");
    if (parse_double(text("label_smoothing")).value_or(0) != 0)
      take("label_smoothing", "train.label_smoothing", "");
    if (!loss_.note.empty()) conversion_.note_lost(key_, std::string(loss_.note));
  }

 private:
  std::string text(std::string_view name) const {
    const Value* value = value_at(key_.value, name);
    return value == nullptr ? std::string() : value->text;
  }
  void take(std::string_view name, std::string_view field, std::string_view usual) const {
    const std::string own = text(name);
    const std::string value = own.empty() ? std::string(usual) : own;
    if (!value.empty()) conversion_.set(key_, field, value);
  }

  Conversion& conversion_;
  const SourceKey& key_;
  const TuneLoss& loss_;
};

/// The loss names the objective.
void tune_loss(Conversion& conversion, const SourceKey& key) {
  const Value* component = value_at(key.value, "_component_");
  const std::string path = component == nullptr ? "" : component->text;
  const std::string name = path.substr(path.rfind('.') + 1);
  constexpr auto kOthers =
      std::to_array<std::string_view>({"PPOLoss", "GRPO", "KLLoss", "SymmetricKL"});
  for (const TuneLoss& loss : kTuneLosses)
    if (loss.name == name) return TunePreference(conversion, key, loss).apply();
  const bool is_other = std::any_of(kOthers.begin(), kOthers.end(), [&](std::string_view other) {
    return name.find(other) != std::string::npos;
  });
  if (is_other)
    return conversion.refuse(key,
                             fmt::format("`loss` is {}, which is not supported", excerpt(name)),
                             other_objectives("torchtune"));
  const bool is_cross_entropy =
      name.empty() || name.find("CrossEntropy") != std::string::npos || name.starts_with("CEWith");
  if (is_cross_entropy) return conversion.note_no_meaning(key, std::string(kAlwaysLoss));
  conversion.note_lost(key, fmt::format("{} is not known: {}", excerpt(name), kAlwaysLoss));
}

/// The reference model of the recipes that train all parameters.
void tune_reference(Conversion& conversion, const SourceKey& key) {
  if (key.value.text == conversion.text_of("checkpointer.checkpoint_dir"))
    return conversion.note_no_meaning(key, "the reference is the model as the run starts");
  if (!is_off(key.value)) conversion.set(key, "train.reference", key.value);
}

/// Each epoch ends after this many steps there.
void tune_epoch_steps(Conversion& conversion, const SourceKey& key) {
  const auto steps = parse_int(key.value.text);
  if (!steps || *steps < 1) return;
  const auto epochs = parse_int(conversion.text_of("epochs"));
  const bool fits = epochs && *epochs >= 1 && *epochs < 1'000'000 && *steps < 1'000'000'000;
  conversion.note_lost(
      key, fmt::format("epochs are run to their end; train.max_steps: {} gives the same length",
                       fits ? fmt::format("{}", *steps * *epochs) : "epochs times this number"));
}

void tune_device(Conversion& conversion, const SourceKey& key) {
  if (key.value.text == "cpu") conversion.launch.devices = "cpu";
}

/// Loggers and the trackers that they write for; empty: metrics.jsonl is enough.
constexpr auto kLoggers = std::to_array<WordPair>({{"TensorBoardLogger", "tensorboard"},
                                                   {"WandBLogger", "wandb"},
                                                   {"MLFlowLogger", "mlflow"},
                                                   {"DiskLogger", ""},
                                                   {"StdoutLogger", ""}});

void tune_logger(Conversion& conversion, const SourceKey& key) {
  const std::string name = component_name(key);
  const auto* const found =
      std::ranges::find_if(kLoggers, [&](const WordPair& pair) { return pair.theirs == name; });
  if (found == kLoggers.end())
    return conversion.note_lost(
        key, fmt::format("{}: not supported; docs/experiment-trackers.md shows which trackers are",
                         name));
  Value list{.kind = Value::Kind::kList, .mark = key.value.mark};
  if (!found->ours.empty()) list.items.push_back(Value::scalar(std::string(found->ours)));
  conversion.set(key, "output.report_to", std::move(list));
  if (found->ours == "tensorboard" || found->ours.empty()) return;
  for (const auto& [theirs, field] :
       {std::pair("project", "project"), std::pair("experiment_name", "project"),
        std::pair("name", "name"), std::pair("run_name", "name"), std::pair("tracking_uri", "uri")})
    if (const auto named = conversion.find(fmt::format("metric_logger.{}", theirs)))
      conversion.set(*named, fmt::format("output.tracking.{}", field), named->value);
}

/// Without a limit nothing is cut off there. torch's AdamW decays weights by default.
void tune_finish(Conversion& conversion) {
  const std::string optimizer = ascii_lower(conversion.text_of("optimizer._component_"));
  if (optimizer.find("adamw") != std::string::npos && !conversion.has("train.weight_decay"))
    conversion.set_default("train.weight_decay", "0.01");
  set_processes_of_sizes(conversion);
  if (!conversion.find("dataset_val"))
    take_back_evaluations(conversion, "without dataset_val nothing is evaluated");
  for (const char* name : {"tokenizer.max_seq_len", "max_seq_len"}) {
    const auto key = conversion.source().find_named(name);
    if (!key || key->value.kind != Value::Kind::kNull) continue;
    conversion.note_lost(*key, kUnlimited);
  }
}

constexpr auto kTorchtuneConverters = std::to_array<Converter>({
    {"model", tune_model},
    {"attention_modules", tune_attention_modules},
    {"dataset", tune_dataset},
    {"validation", tune_validation},
    {"epoch_steps", tune_epoch_steps},
    {"optimizer", tune_optimizer},
    {"betas", tune_betas},
    {"schedule", tune_schedule},
    {"loss", tune_loss},
    {"reference", tune_reference},
    {"device", tune_device},
    {"logger", tune_logger},
    {"size", tune_size},
});

}  // namespace

const ToolCode& torchtune() {
  static const ToolCode code{.tool = Tool::kTorchtune,
                             .name = "torchtune",
                             .word = "torchtune",
                             .table = kTorchtuneTable,
                             .converters = kTorchtuneConverters,
                             .finish = tune_finish,
                             .has_interpolation = true};
  return code;
}

}  // namespace sftrun::foreign
