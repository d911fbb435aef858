#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "fsdp.h"
#include "sftrun/core/strings.h"
#include "templates.h"

/// Values of Axolotl's YAML that have another form here, as its data sets (tools/axolotl.yaml).
namespace sftrun::foreign {

extern const std::string_view kAxolotlTable;  // its table

namespace {

using Json = nlohmann::ordered_json;

constexpr auto kAxolotlModes = std::to_array<WordPair>({{"lora", "lora"}, {"qlora", "qlora"}});

std::string text_in(const Value& map, std::string_view name) {
  const Value* value = value_at(map, name);
  return value == nullptr ? "" : value->text;
}

/// What `type` says of the records of a data set.
struct AxolotlType {
  std::string_view begin;  ///< of its name
  std::string_view format;
  std::string_view note = {};              ///< what is not as in Axolotl
  std::span<const WordPair> columns = {};  ///< names of its columns, if they are others
};

constexpr std::string_view kAxolotlTurns = "chat_template";
constexpr std::string_view kOwnPromptText =
    "Axolotl puts these records into a prompt text of its own; here they go through the model's "
    "chat template";
constexpr std::string_view kPlainPairs =
    "Axolotl puts these strings into a chat template; here strings are trained on as they are: "
    "write prompt, chosen and rejected as lists of messages";

constexpr auto kAxolotlOrca = std::to_array<WordPair>(
    {{"system_prompt", "system"}, {"question", "instruction"}, {"response", "output"}});
constexpr auto kAxolotlQa =
    std::to_array<WordPair>({{"question", "instruction"}, {"answer", "output"}});
constexpr auto kAxolotlResponse = std::to_array<WordPair>({{"response", "output"}});
constexpr auto kAxolotlQuestion = std::to_array<WordPair>({{"question", "prompt"}});
constexpr auto kAxolotlInput = std::to_array<WordPair>({{"input", "prompt"}});
constexpr auto kAxolotlMessages = std::to_array<WordPair>({{"messages", "prompt"}});

/// The first that fits is meant.
constexpr auto kAxolotlTypes = std::to_array<AxolotlType>({
    {kAxolotlTurns, "messages"},
    {"sharegpt", "sharegpt"},
    {"alpaca_w_system.load_open_orca", "alpaca", kOwnPromptText, kAxolotlOrca},
    {"alpaca_chat.load_qa", "alpaca", kOwnPromptText, kAxolotlQa},
    {"alpaca", "alpaca", kOwnPromptText},
    {"gpteacher", "alpaca", kOwnPromptText, kAxolotlResponse},
    {"completion", "text"},
    {"pretrain", "text"},
});
constexpr auto kAxolotlPairs = std::to_array<AxolotlType>({
    {"chat_template.argilla_chat", "preference"},
    {kAxolotlTurns, "preference", "", kAxolotlMessages},
    {"chatml.ultra", "preference"},
    {"llama3.ultra", "preference"},
    {"chatml.intel", "preference", kPlainPairs, kAxolotlQuestion},
    {"llama3.intel", "preference", kPlainPairs, kAxolotlQuestion},
    {"chatml.prompt_pairs", "preference", kPlainPairs},
    {"llama3.prompt_pairs", "preference", kPlainPairs},
    {"chatml.icr", "preference", kPlainPairs, kAxolotlInput},
    {"llama3.icr", "preference", kPlainPairs, kAxolotlInput},
    {"user_defined", "preference", kPlainPairs},
});

/// null: `rl` names none that there is here.
const ObjectiveInfo* axolotl_preference(const Conversion& conversion) {
  return preference_objective(conversion, conversion.text_of("rl"), "dpo_loss_type");
}

bool has_pairs(const Conversion& conversion) {
  return axolotl_preference(conversion) != nullptr;
}

/// nullptr: not known.
const AxolotlType* axolotl_type(const Conversion& conversion, const std::string& name) {
  const std::span<const AxolotlType> types =
      has_pairs(conversion) ? std::span<const AxolotlType>(kAxolotlPairs) : kAxolotlTypes;
  const auto found = std::find_if(types.begin(), types.end(), [&](const AxolotlType& type) {
    return name.starts_with(type.begin);
  });
  return found == types.end() ? nullptr : &*found;
}

/// The roles of a data set's own map, which is from our names to lists of theirs. Without one
/// Axolotl knows these names.
Json axolotl_roles(const Value& source, const AxolotlType* type) {
  Json roles = Json::object();
  const Value* given = value_at(source, "roles");
  if (given != nullptr && given->kind == Value::Kind::kMap && !given->items.empty()) {
    for (size_t i = 0; i < given->keys.size(); ++i) {
      const Value& theirs = given->items[i];
      const std::vector<Value> one = {theirs};
      for (const Value& name : theirs.kind == Value::Kind::kScalar ? one : theirs.items)
        if (name.text != given->keys[i].text) roles[name.text] = given->keys[i].text;
    }
  } else if (type != nullptr && type->begin == kAxolotlTurns && type->format == "messages") {
    roles = {{"human", "user"}, {"gpt", "assistant"}};
  }
  return roles;
}

/// Column names of a data set, by our names.
Json axolotl_fields(const Value& source, const AxolotlType* type) {
  const bool is_pair = type != nullptr && type->format == "preference";
  const auto kColumns =
      std::to_array<WordPair>({{"field_messages", is_pair ? "prompt" : "messages"},
                               {"field_tools", "tools"},
                               {"field_system", "system"},
                               {"field_prompt", "prompt"},
                               {"field_chosen", "chosen"},
                               {"field_rejected", "rejected"},
                               {"field", "text"},
                               {"text_column", "text"},
                               {"message_field_role", "role"},
                               {"message_field_content", "content"},
                               {"message_field_training", "train"},
                               {"message_property_mappings.role", "role"},
                               {"message_property_mappings.content", "content"},
                               {"type.field_prompt", "prompt"},
                               {"type.field_chosen", "chosen"},
                               {"type.field_rejected", "rejected"},
                               {"type.field_instruction", "instruction"},
                               {"type.field_input", "input"},
                               {"type.field_output", "output"},
                               {"type.field_system", "system"}});
  Json fields = Json::object();
  if (type != nullptr)
    for (const WordPair& column : type->columns)
      fields[std::string(column.ours)] = std::string(column.theirs);
  for (const WordPair& column : kColumns) {
    const std::string name = text_in(source, column.theirs);
    if (!name.empty()) fields[std::string(column.ours)] = name;
  }
  for (auto it = fields.begin(); it != fields.end();)
    it = it.key() == it.value() ? fields.erase(it) : std::next(it);
  if (const Json roles = axolotl_roles(source, type); !roles.empty()) fields["roles"] = roles;
  return fields;
}

/// Notes what of a data set would train other tokens than Axolotl does.
class AxolotlSourceNotes {
 public:
  AxolotlSourceNotes(Conversion& conversion, const SourceKey& key, const Value& source)
      : conversion_(conversion), key_(key), source_(source) {}

  void note_type(const std::string& name, const AxolotlType* type) const {
    const Value* map = value_at(source_, "type");
    if (map != nullptr && map->kind == Value::Kind::kMap) return note_prompt_text(*map);
    if (type == nullptr && !name.empty())
      note(fmt::format("type {} is not known: set `format` and `fields` of the data set", name));
    else if (type != nullptr && !type->note.empty())
      note(fmt::format("type {}: {}", name, type->note));
  }

  /// Which turns and ends of turns are trained on.
  void note_labels() const {
    const Value* roles = value_at(source_, "roles_to_train");
    const auto is_assistant = [](const Value& role) {
      return role.text == "assistant" || role.text == "gpt";
    };
    if (roles != nullptr && roles->kind != Value::Kind::kNull &&
        !(roles->items.empty()
              ? is_assistant(*roles)
              : std::all_of(roles->items.begin(), roles->items.end(), is_assistant)))
      note(
          "roles_to_train: the loss is on the assistant's turns, or with `data.loss_on: all` on "
          "everything");
    for (const char* end : {"train_on_eos", "train_on_eot"}) {
      const std::string word = ascii_lower(text_in(source_, end));
      if (!word.empty() && word != "turn")
        note(fmt::format("{} {}: the token that ends a trained turn, and no other, carries a label",
                         end, word));
    }
    if (const std::string style = text_in(source_, "conversation"); !style.empty())
      note(fmt::format("conversation {}: `model.chat_template` names a chat template", style));
    if (!text_in(source_, "message_field_training_detail").empty())
      note("message_field_training_detail: labels cover whole turns");
  }

  void note_others(std::span<const std::string_view> used) const {
    for (size_t i = 0; i < source_.keys.size(); ++i) {
      const std::string& name = source_.keys[i].text;
      const bool is_default = name == "chat_template" &&
                              ascii_lower(source_.items[i].text).starts_with("tokenizer_default");
      if (is_default || is_off(source_.items[i])) continue;
      if (std::find(used.begin(), used.end(), name) == used.end())
        note(fmt::format("{} has no equivalent", name));
    }
  }

  void note(const std::string& what) const {
    conversion_.note_lost(key_, fmt::format("{}: {}", text_in(source_, "path"), what));
  }

 private:
  /// A prompt text of the file's own.
  void note_prompt_text(const Value& type) const {
    for (const char* part : {"format", "no_input_format", "prompt_format", "chosen_format",
                             "rejected_format", "system_format", "system_prompt"})
      if (!text_in(type, part).empty())
        note(
            fmt::format("type.{}: the record goes through the model's chat template "
                        "(`model.chat_template`)",
                        part));
  }

  Conversion& conversion_;
  const SourceKey& key_;
  const Value& source_;
};

/// A file, or the files in a list.
std::vector<std::string> axolotl_files(const Value& source) {
  const Value* files = value_at(source, "data_files");
  if (files == nullptr || files->kind == Value::Kind::kNull) return {text_in(source, "path")};
  if (files->kind == Value::Kind::kScalar) return {files->text};
  std::vector<std::string> names;
  for (const Value& file : files->items) names.push_back(file.text);
  if (names.empty()) names.push_back(text_in(source, "path"));
  return names;
}

/// Adds a data set, once for each of its files.
void add_axolotl_source(Conversion& conversion, const SourceKey& key, const Value& source,
                        Json& sources) {
  constexpr auto kUsed = std::to_array<std::string_view>({"path",
                                                          "name",
                                                          "split",
                                                          "type",
                                                          "ds_type",
                                                          "data_files",
                                                          "field",
                                                          "text_column",
                                                          "field_messages",
                                                          "field_tools",
                                                          "field_system",
                                                          "field_prompt",
                                                          "field_chosen",
                                                          "field_rejected",
                                                          "message_field_role",
                                                          "message_field_content",
                                                          "message_property_mappings",
                                                          "message_field_training",
                                                          "message_field_training_detail",
                                                          "roles",
                                                          "roles_to_train",
                                                          "train_on_eos",
                                                          "train_on_eot",
                                                          "conversation"});
  const std::string name = text_in(source, "type");
  const Value* map = value_at(source, "type");
  const bool is_own_type = map != nullptr && map->kind == Value::Kind::kMap;
  const AxolotlType* type = axolotl_type(
      conversion, is_own_type ? (has_pairs(conversion) ? "user_defined" : "alpaca") : name);
  const AxolotlSourceNotes notes(conversion, key, source);
  notes.note_type(name, type);
  notes.note_labels();
  notes.note_others(kUsed);
  for (const std::string& file : axolotl_files(source)) {
    Json result = {{"path", file}};
    if (const std::string text = text_in(source, "name"); !text.empty()) result["name"] = text;
    if (const std::string what = set_split(conversion, result, text_in(source, "split"));
        !what.empty())
      notes.note(what);
    if (type != nullptr) result["format"] = std::string(type->format);
    if (const Json fields = axolotl_fields(source, type); !fields.empty())
      result["fields"] = fields;
    sources.push_back(std::move(result));
  }
}

void axolotl_sources(Conversion& conversion, const SourceKey& key, std::string_view field) {
  Json sources = Json::array();
  for (const Value& source : key.value.items)
    if (source.kind == Value::Kind::kMap) add_axolotl_source(conversion, key, source, sources);
  if (sources.empty()) return conversion.note_lost(key, "it is not a list of {path, type}");
  conversion.set(key, field, value_from_json(sources));
}
void axolotl_datasets(Conversion& conversion, const SourceKey& key) {
  axolotl_sources(conversion, key, "data.train");
}
/// A path, or a list of data sets; their texts are read while training.
void axolotl_pretraining(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (key.value.kind == Value::Kind::kScalar) {
    conversion.set(key, "data.train", key.value);
    conversion.set(key, "data.format", "text");
  } else {
    Json sources = Json::array();
    for (const Value& source : key.value.items) {
      if (source.kind != Value::Kind::kMap) continue;
      add_axolotl_source(conversion, key, source, sources);
    }
    for (Json& source : sources) source["format"] = "text";
    if (sources.empty()) return conversion.note_lost(key, "it is not a list of {path, type}");
    conversion.set(key, "data.train", value_from_json(sources));
  }
  conversion.set(key, "data.streaming", "true");
}
void axolotl_test_datasets(Conversion& conversion, const SourceKey& key) {
  axolotl_sources(conversion, key, "data.val");
}

/// Examples of one device and step, whatever their micro-batches.
void axolotl_batch(Conversion& conversion, const SourceKey& key) {
  const auto total = conversion.count_of(key.name, 1);
  const int64_t micro = conversion.count_of("micro_batch_size", 1).value_or(1);
  if (!total || conversion.find("gradient_accumulation_steps")) return;
  conversion.set(key, "train.grad_accum", fmt::format("{}", std::max<int64_t>(*total / micro, 1)));
}

void axolotl_objective(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (const ObjectiveInfo* objective = axolotl_preference(conversion))
    return conversion.set(key, "train.objective", std::string(objective->name));
  refuse_objective(conversion, key);
}

/// Without `rl` it is read as dpo's.
void axolotl_loss(Conversion& conversion, const SourceKey& key) {
  set_loss(conversion, key, preference_objective(conversion, "dpo", key.name));
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
  conversion.note_no_meaning(key, "the model's folder says what reads its images");
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
    {"loss", axolotl_loss},
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
