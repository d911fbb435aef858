#include "judgement.h"

#include <optional>
#include <utility>

#include "likely_columns.h"
#include "nulls.h"
#include "record_values.h"
#include "sftrun/config/objectives.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/record_error.h"

namespace sftrun::data {
namespace {

using config::kLabelAlias;
using config::kLabelColumn;

/// "true" or "false" in any case; nullopt: another text.
std::optional<bool> word_as_judgement(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_string()) return std::nullopt;
  const std::string word = ascii_lower(std::string(trim(value.get_ref<const std::string&>())));
  if (word == "true") return true;
  return word == "false" ? std::optional<bool>(false) : std::nullopt;
}

/// Also 1 and 0, and their texts; pandas writes a column with gaps as 1.0 and 0.0.
std::optional<bool> value_as_judgement(const Json& value) {
  if (const auto word = word_as_judgement(value)) return word;
  const Json number =
      value.is_string() ? parse_json_text(trim(value.get_ref<const std::string&>())) : value;
  if (!number.is_number() || (number != 0 && number != 1)) return std::nullopt;
  return number == 1;
}

[[noreturn]] void refuse_without_label(const std::string& objective, const Json& record,
                                       const std::string& where) {
  const std::string write = "write \"label\": true or false";
  throw RecordError(
      fmt::format("the record has no \"label\", which train.objective {} needs (its keys: {})",
                  objective, keys_of(record)),
      where,
      fmt::format("{}; or name the column: data.fields: {{label: COLUMN}}; answers without a label "
                  "are for train.objective: {}",
                  write, config::first_objective_for(config::ExampleForm::kAnswer)),
      write);
}

/// A text beside a conversation repeats what that begins with; beside a prompt of messages the
/// answer may be one message, or its text.
/// @return the record with the format to read it as
std::pair<Json, RecordFormat> as_one_conversation(const Json& record) {
  Json changed = record;
  Json& completion = changed["completion"];
  const Json* prompt = value_of(record, "prompt");
  const bool has_messages = prompt != nullptr && prompt->is_array();
  if (has_messages && completion.is_object()) completion = Json::array({completion});
  if (has_messages && completion.is_string())
    completion = Json::array({message_of("assistant", completion.get<std::string>())});
  if (has_messages || !completion.is_array()) return {changed, RecordFormat::kPromptCompletion};
  changed["messages"] = std::move(completion);
  changed.erase("completion");
  return {changed, RecordFormat::kMessages};
}

/// The turns before the last are the prompt.
void end_prompt_before_answer(Conversation& conversation, const std::string& where) {
  if (conversation.num_prompt_messages > 0) return;  // the record says where it ends
  const Json& messages = conversation.messages;
  if (messages.back()["role"] != "assistant") {
    throw DataError(
        fmt::format("the conversation ends with a turn of the role `{}`, and its label judges "
                    "an answer",
                    excerpt(messages.back()["role"].get<std::string>())),
        where, "end it with the assistant turn that is judged, or leave the record out");
  }
  if (messages.size() == 1) {
    throw DataError("the conversation has nothing before the answer that is judged", where,
                    "write the user's turn before it, or leave the record out");
  }
  conversation.num_prompt_messages = messages.size() - 1;
}

}  // namespace

const char* label_column(const Json& record) {
  for (const char* column : {kLabelColumn, kLabelAlias})
    if (value_of(record, column) != nullptr) return column;
  return nullptr;
}

std::optional<bool> likely_judgement(const Json& record) {
  const char* column = label_column(record);
  if (column == nullptr || is_preference(record)) return std::nullopt;
  const bool is_unpaired = column == kLabelAlias || value_of(record, "completion") != nullptr;
  return is_unpaired ? value_as_judgement(record[column]) : word_as_judgement(record[column]);
}

bool has_judgement(const Json& record) {
  return likely_judgement(record).has_value();
}

bool judgement_of(const Json& record, const std::string& where) {
  const char* column = label_column(record);
  if (column == nullptr)
    refuse_without_label(config::objectives_for(config::ExampleForm::kJudged), record, where);
  const Json& value = record[column];
  if (const auto judgement = value_as_judgement(value)) return *judgement;
  throw DataError(
      fmt::format("\"{}\" must be true or false, not {}", column, excerpt(to_json_text(value))),
      where,
      value.is_number()
          ? "write true or 1 for a desirable answer, and false or 0 for an undesirable one"
          : "write true for a desirable answer, and false for an undesirable one");
}

std::vector<JudgedShape> judged_shapes(const Json& record, RecordFormat format,
                                       const TemplateTraits& chat_template,
                                       const std::string& where) {
  if (config::format_info(format).is_pair) {
    std::vector<NamedShape> pair = shapes_of(record, format, chat_template, where);
    return {{std::move(pair.at(0)), true}, {std::move(pair.at(1)), false}};
  }
  const bool is_desirable = judgement_of(record, where);
  std::vector<NamedShape> shapes = answer_behind_prompt(record, format, chat_template, where);
  return {{std::move(shapes.front()), is_desirable}};
}

std::vector<NamedShape> answer_behind_prompt(const Json& record, RecordFormat format,
                                             const TemplateTraits& chat_template,
                                             const std::string& where) {
  std::pair<Json, RecordFormat> changed;
  const bool may_change =
      format == RecordFormat::kPromptCompletion && record.contains("completion");
  if (may_change) changed = as_one_conversation(record);
  std::vector<NamedShape> shapes =
      may_change ? shapes_of(changed.first, changed.second, chat_template, where)
                 : shapes_of(record, format, chat_template, where);
  NamedShape& only = shapes.front();
  if (auto* conversation = std::get_if<Conversation>(&only.shape))
    end_prompt_before_answer(*conversation, where);
  return shapes;
}

void refuse_unjudged(const Json& record, const config::ObjectiveInfo& reader,
                     const std::string& where) {
  refuse_token_ids(record, where);
  if (label_column(record) == nullptr)
    refuse_without_label(std::string(reader.name), record, where);
  throw RecordError(
      fmt::format("the record has a label, and no prompt and answer that it judges (its keys: {})",
                  keys_of(record)),
      where,
      "name the columns: data.fields: {prompt: COLUMN, completion: COLUMN} (texts, or lists of "
      "messages), {instruction: COLUMN, output: COLUMN} or {messages: COLUMN}",
      "write \"prompt\" and \"completion\", or \"messages\"");
}

}  // namespace sftrun::data
