#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "fsdp.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "templates.h"
#include "trl_preference.h"

/// Values of TRL's YAML that have another form here (tools/trl.yaml).
namespace sftrun::foreign {

extern const std::string_view kTrlTable;  // its table

namespace {

using Json = nlohmann::ordered_json;

/// The dtype of the loaded weights. With bf16 or fp16 it is not the one of the computation.
void trl_dtype(Conversion& conversion, const SourceKey& key) {
  const auto is_on = [&](const char* name) { return parse_bool(conversion.text_of(name)) == true; };
  if (ascii_lower(key.value.text) == "auto" || is_on("bf16") || is_on("fp16"))
    return conversion.note_no_meaning(key, "trained weights are kept in fp32");
  conversion.set(key, "model.dtype", key.value);
}

/// A data set of the hub or a path, with its subset and split.
void trl_dataset(Conversion& conversion, const SourceKey& key) {
  const auto with_split = [&](const std::string& split) {
    Json source = {{"path", key.value.text}};
    if (const std::string name = conversion.text_of("dataset_config"); !name.empty())
      source["name"] = name;
    if (const std::string what = set_split(conversion, source, split); !what.empty())
      conversion.note_lost(key, what);
    return value_from_json(Json::array({source}));
  };
  if (key.value.kind != Value::Kind::kScalar || is_off(key.value)) return;
  conversion.set(key, "data.train", with_split(conversion.text_of("dataset_train_split")));
  const std::string evaluates = eval_strategy_of(conversion);
  if (evaluates.empty() || evaluates == "no" || parse_bool(evaluates) == false) return;
  const std::string split = conversion.text_of("dataset_test_split");
  conversion.set(key, "data.val", with_split(split.empty() ? "test" : split));
}

/// Read with the data set, for evaluations alone.
void trl_test_split(Conversion& conversion, const SourceKey& key) {
  const std::string evaluates = eval_strategy_of(conversion);
  if (evaluates.empty() || evaluates == "no" || parse_bool(evaluates) == false)
    conversion.note_no_meaning(key,
                               "TRL reads it with eval_strategy alone; to evaluate on it, set "
                               "`data.val` and `train.eval_strategy`");
  else if (!conversion.find("dataset_name"))
    conversion.note_lost(key, "it is of dataset_name: name what to evaluate on in `data.val`");
}

/// DatasetMixtureConfig: a list of {path, name, split, data_files}.
void trl_mixture(Conversion& conversion, const SourceKey& key) {
  Json sources = Json::array();
  for (const Value& one : key.value.items) {
    const auto text = [&](const char* name) {
      const Value* value = value_at(one, name);
      return value == nullptr ? std::string() : value->text;
    };
    if (one.kind != Value::Kind::kMap || text("path").empty()) continue;
    Json source = {{"path", text("data_files").empty() ? text("path") : text("data_files")}};
    if (!text("name").empty()) source["name"] = text("name");
    if (const std::string what = set_split(conversion, source, text("split")); !what.empty())
      conversion.note_lost(key, what);
    sources.push_back(std::move(source));
  }
  if (sources.empty()) return conversion.note_lost(key, "it is not a list of {path, name, split}");
  conversion.set(key, "data.train", value_from_json(sources));
}

/// alignment-handbook's map of data sets and the share of each that is used.
void trl_mixer(Conversion& conversion, const SourceKey& key) {
  std::string split;
  if (const auto splits = conversion.find("dataset_splits"))
    for (const Value& one : splits->value.items)
      if (split.empty() && one.text.starts_with("train")) split = one.text;
  Json sources = Json::array();
  for (size_t i = 0; i < key.value.keys.size(); ++i) {
    Json source = {{"path", key.value.keys[i].text}};
    if (!split.empty()) source["split"] = split;
    const auto share = parse_double(key.value.items[i].text);
    if (share && *share != 1) source["weight"] = *share;
    sources.push_back(std::move(source));
  }
  if (sources.empty()) return conversion.note_lost(key, "it is not a map of data sets and shares");
  conversion.set(key, "data.train", value_from_json(sources));
}

void trl_adapter(Conversion& conversion, const SourceKey& key) {
  if (parse_bool(key.value.text) == true) conversion.set(key, "tuning.mode", "lora");
}
void trl_4bit(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (!conversion.text_of("bnb_4bit_quant_type").empty()) return;  // its own key sets the format
  conversion.set(key, "tuning.quant", "nf4");
}
void trl_4bit_type(Conversion& conversion, const SourceKey& key) {
  if (parse_bool(conversion.text_of("load_in_4bit")) == true)
    conversion.set(key, "tuning.quant", key.value);
}
void trl_double_quant(Conversion& conversion, const SourceKey& key) {
  if (parse_bool(conversion.text_of("load_in_4bit")) == true)
    conversion.set(key, "tuning.double_quant", key.value);
}
void trl_8bit(Conversion& conversion, const SourceKey& key) {
  if (!is_off(key.value)) conversion.set(key, "tuning.quant", "int8");
}

void trl_targets(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  const bool is_one_name = key.value.kind == Value::Kind::kList && key.value.items.size() == 1;
  conversion.set(key, "tuning.lora.target_modules", is_one_name ? key.value.items[0] : key.value);
}

void trl_text_field(Conversion& conversion, const SourceKey& key) {
  if (key.value.text.empty() || key.value.text == "text") return;
  conversion.set(key, "data.fields", value_from_json(Json{{"text", key.value.text}}));
}

void trl_completion_only(Conversion& conversion, const SourceKey& key) {
  const auto only = parse_bool(key.value.text);
  if (only) conversion.set(key, "data.loss_on", *only ? "completion" : "all");
}

/// A file, a directory with a tokenizer's files, or a model on the hub.
void trl_template(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  const std::string& name = key.value.text;
  const bool is_path = name.ends_with(".jinja") ||
                       leads_to_file(conversion.source().path_beside(name)) ||
                       std::count(name.begin(), name.end(), '/') != 1 || name.starts_with('.');
  if (is_path) return conversion.set(key, "model.chat_template", key.value);
  conversion.note_lost(key,
                       fmt::format("the template of a model on the hub is not loaded: `sftrun "
                                   "download {}`, and set `model.chat_template` to the directory",
                                   name));
}

void trl_activations(Conversion& conversion, const SourceKey& key) {
  if (!is_off(key.value)) set_offload_of_activations(conversion, key);
}

void trl_deepspeed(Conversion& conversion, const SourceKey& key) {
  if (!is_off(key.value))
    conversion.set(key, "parallel.deepspeed",
                   conversion.source().path_beside(key.value.text).string());
}

/// Without a limit nothing is cut off there.
void note_unlimited(Conversion& conversion) {
  for (const char* name : {"max_length", "max_seq_length"}) {
    const auto key = conversion.source().find_named(name);
    if (key && key->value.kind == Value::Kind::kNull) conversion.note_lost(*key, kUnlimited);
  }
}

/// The objective, what it trains on, and the defaults that depend on them.
void trl_finish(Conversion& conversion) {
  constexpr int64_t kLoggingSteps = 10;
  note_unlimited(conversion);
  complete_eval_steps(conversion, kLoggingSteps);
  finish_objective_of_trl(conversion);
  const config::ObjectiveInfo& objective = trl_objective(conversion);
  const bool is_sft = objective.reads_answers();  // also distillation: GKDConfig is an SFTConfig
  if (!conversion.has("train.learning_rate"))
    conversion.set_default("train.learning_rate", is_sft                   ? "2e-5"
                                                  : objective.has_scores() ? "1e-4"
                                                                           : "1e-6");
  const bool is_half =
      conversion.has("train.bf16") || conversion.has("train.fp16") || conversion.has("model.dtype");
  if (!is_half) conversion.set_default("train.bf16", "true");
  if (conversion.has("tuning.mode") && !conversion.has("tuning.lora.target_modules"))
    conversion.set_default("tuning.lora.target_modules",
                           value_from_json(Json::array({"q_proj", "v_proj"})));
  if (is_sft && !conversion.has("tuning.lora.dropout"))
    conversion.set_default("tuning.lora.dropout", has_dropout_in_trl(conversion) ? "0.05" : "0");
  if (!is_sft || conversion.has("data.loss_on")) return;
  if (objective.needs_teacher)  // DataCollatorForChatML labels the last message
    return conversion.set_default("data.loss_on", "last_assistant");
  conversion.set_default("data.loss_on", "all");
  conversion.not_carried.push_back(
      {"assistant_only_loss, completion_only_loss",
       "without them TRL trains on every token of conversations and texts, which is `data.loss_on: "
       "all`, but on the completion alone of records of prompt and completion: for these set "
       "`data.loss_on: completion`",
       conversion.file().string()});
}

constexpr auto kTrlConverters = std::to_array<Converter>({
    {"dataset", trl_dataset},
    {"test_split", trl_test_split},
    {"mixture", trl_mixture},
    {"mixer", trl_mixer},
    {"text_field", trl_text_field},
    {"completion_only", trl_completion_only},
    {"loss", trl_loss},
    {"task_type", trl_task_type},
    {"smoothing", trl_smoothing},
    {"sampling", trl_sampling},
    {"beta", trl_beta},
    {"temperature", trl_temperature},
    {"top_k", trl_top_k},
    {"share", trl_share},
    {"new_tokens", trl_new_tokens},
    {"completion_length", trl_completion_length},
    {"teacher", trl_teacher},
    {"sampling_correction", trl_sampling_correction},
    {"vllm", trl_vllm},
    {"precompute", trl_precompute},
    {"dropout", trl_dropout},
    {"chat_template", trl_template},
    {"adapter", trl_adapter},
    {"targets", trl_targets},
    {"4bit", trl_4bit},
    {"8bit", trl_8bit},
    {"4bit_type", trl_4bit_type},
    {"double_quant", trl_double_quant},
    {"activations", trl_activations},
    {"dtype", trl_dtype},
    {"deepspeed", trl_deepspeed},
});

}  // namespace

const ToolCode& trl() {
  static const ToolCode code{.tool = Tool::kTrl,
                             .name = "TRL",
                             .word = "trl",
                             .table = kTrlTable,
                             .converters = kTrlConverters,
                             .finish = trl_finish};
  return code;
}

}  // namespace sftrun::foreign
