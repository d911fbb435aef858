#include "axolotl_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "axolotl_preference.h"
#include "sftrun/core/strings.h"
#include "templates.h"

/// Data sets of Axolotl's YAML.
namespace sftrun::foreign {
namespace {

using Json = nlohmann::ordered_json;

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
constexpr auto kAxolotlResponses = std::to_array<WordPair>(
    {{"instruction", "prompt"}, {"chosen_response", "chosen"}, {"rejected_response", "rejected"}});
constexpr auto kAxolotlAskedPairs = std::to_array<WordPair>({{"input", "instruction"}});
/// prompt_strategies/bradley_terry: texts "input", "chosen" and "rejected", maybe "system", which go
/// through the chat template.
constexpr auto kAxolotlRewards = std::to_array<AxolotlType>({
    {"bradley_terry.chat_template", "preference", "", kAxolotlAskedPairs},
    {"bradley_terry.llama3", "preference",
     "Axolotl writes the template that the type names; here these records go through the model's "
     "chat template (`model.chat_template`)",
     kAxolotlAskedPairs},
});
/// prompt_strategies/dpo, of rl dpo, ipo and simpo.
constexpr auto kAxolotlPairs = std::to_array<AxolotlType>({
    {"chat_template.argilla_chat", "preference"},
    {kAxolotlTurns, "preference", "", kAxolotlMessages},
    {"chatml.argilla_chat", "preference"},
    {"llama3.argilla_chat", "preference"},
    {"chatml.argilla", "preference", kPlainPairs, kAxolotlResponses},
    {"llama3.argilla", "preference", kPlainPairs, kAxolotlResponses},
    {"chatml.ultra", "preference"},
    {"llama3.ultra", "preference"},
    {"chatml.intel", "preference", kPlainPairs, kAxolotlQuestion},
    {"llama3.intel", "preference", kPlainPairs, kAxolotlQuestion},
    {"chatml.prompt_pairs", "preference", kPlainPairs},
    {"llama3.prompt_pairs", "preference", kPlainPairs},
    {"chatml.icr", "preference", kPlainPairs, kAxolotlInput},
    {"llama3.icr", "preference", kPlainPairs, kAxolotlInput},
    {"passthrough", "preference"},
    {"user_defined", "preference"},
});

/// prompt_strategies/orpo: whole conversations in chosen and rejected.
constexpr auto kAxolotlOrpo = std::to_array<AxolotlType>({{kAxolotlTurns, "preference"}});

constexpr std::string_view kOwnTemplate =
    "Axolotl writes the template that the type names; here these records go through the model's "
    "chat template (`model.chat_template`)";
constexpr auto kAxolotlCompletion = std::to_array<WordPair>({{"completion", "output"}});
constexpr auto kAxolotlAnswered =
    std::to_array<WordPair>({{"prompt", "instruction"}, {"completion", "output"}});
constexpr auto kAxolotlAsked =
    std::to_array<WordPair>({{"question", "instruction"}, {"completion", "output"}});
constexpr auto kAxolotlJudgedTurns = std::to_array<WordPair>({{"completion", "messages"}});

/// prompt_strategies/kto: an answer and its label.
constexpr auto kAxolotlJudged = std::to_array<AxolotlType>({
    {"chatml.argilla_chat", "messages", kOwnTemplate, kAxolotlJudgedTurns},
    {"llama3.argilla_chat", "messages", kOwnTemplate, kAxolotlJudgedTurns},
    {"chatml.argilla", "alpaca", kOwnTemplate, kAxolotlCompletion},
    {"llama3.argilla", "alpaca", kOwnTemplate, kAxolotlCompletion},
    {"chatml.intel", "alpaca", kOwnTemplate, kAxolotlAsked},
    {"llama3.intel", "alpaca", kOwnTemplate, kAxolotlAsked},
    {"chatml.prompt_pairs", "alpaca", kOwnTemplate, kAxolotlAnswered},
    {"llama3.prompt_pairs", "alpaca", kOwnTemplate, kAxolotlAnswered},
    {"chatml.ultra", "alpaca", kOwnTemplate, kAxolotlAnswered},
    {"llama3.ultra", "alpaca", kOwnTemplate, kAxolotlAnswered},
    {"user_defined", "prompt_completion"},
});

/// The types that `rl` reads.
std::span<const AxolotlType> axolotl_types(const Conversion& conversion) {
  const config::ObjectiveInfo* objective = axolotl_preference(conversion);
  if (is_axolotl_reward_model(conversion)) return kAxolotlRewards;
  if (objective == nullptr) return kAxolotlTypes;
  if (objective->form == config::ExampleForm::kJudged) return kAxolotlJudged;
  return objective->objective == config::Objective::kOrpo
             ? std::span<const AxolotlType>(kAxolotlOrpo)
             : kAxolotlPairs;
}

/// The strings of a record are trained on as they are.
bool is_plain(const AxolotlType* type) {
  return type != nullptr && (type->format == "preference" || type->format == "prompt_completion");
}

/// nullptr: not known.
const AxolotlType* axolotl_type(const Conversion& conversion, const std::string& name) {
  const std::span<const AxolotlType> types = axolotl_types(conversion);
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
                               {"type.field_completion", "completion"},
                               {"type.field_label", "label"},
                               {"type.field_instruction", "instruction"},
                               {"type.field_input", "input"},
                               {"type.field_output", "output"},
                               {"type.field_system", "system"}});
  Json fields = Json::object();
  if (type != nullptr)
    for (const WordPair& column : type->columns)
      fields[std::string(column.ours)] = std::string(column.theirs);
  for (const WordPair& column : kColumns) {
    if (is_plain(type) && column.theirs == "type.field_system") continue;
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
    if (map != nullptr && map->kind == Value::Kind::kMap)
      return note_prompt_text(*map, is_plain(type));
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
  /// A prompt text of the file's own. Formats that are the column itself say nothing.
  void note_prompt_text(const Value& type, bool is_plain_text) const {
    constexpr std::string_view kEnd = "_format";
    for (const char* part :
         {"format", "no_input_format", "prompt_format", "chosen_format", "rejected_format",
          "completion_format", "system_format", "system_prompt"}) {
      const std::string_view name = part;
      const std::string text = text_in(type, part);
      const bool is_column = is_plain_text && name.ends_with(kEnd) &&
                             text == fmt::format("{{{}}}", name.substr(0, name.rfind(kEnd)));
      if (text.empty() || is_column) continue;
      note(fmt::format(
          "type.{}: {}", part,
          is_plain_text ? "strings are trained on as they are: write prompt and answers as lists "
                          "of messages"
                        : "the record goes through the model's chat template "
                          "(`model.chat_template`)"));
    }
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

/// Whether Axolotl reads the instruction of a record, and no input.
bool is_judged_alpaca(const Conversion& conversion, const AxolotlType* type) {
  return axolotl_preference(conversion) != nullptr && type != nullptr && type->format == "alpaca";
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
      conversion,
      is_own_type ? (axolotl_preference(conversion) != nullptr ? "user_defined" : "alpaca") : name);
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
    Json fields = axolotl_fields(source, type);
    if (is_judged_alpaca(conversion, type)) leave_out(fields, {"input"});
    if (!fields.empty()) result["fields"] = fields;
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

}  // namespace

void axolotl_datasets(Conversion& conversion, const SourceKey& key) {
  axolotl_sources(conversion, key, "data.train");
}

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

}  // namespace sftrun::foreign
