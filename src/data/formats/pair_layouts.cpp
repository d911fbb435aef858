#include "pair_layouts.h"

#include <algorithm>
#include <utility>

#include "nulls.h"
#include "readers.h"
#include "record_values.h"

namespace sftrun::data {
namespace {

/// The column with the turns before answers that are one turn each; null: there is none.
const char* turns_before_answers(const Json& record) {
  const Json *chosen = value_of(record, "chosen"), *rejected = value_of(record, "rejected");
  if (!chosen->is_object() || !rejected->is_object()) return nullptr;
  for (const char* column : {"conversations", "messages"}) {
    const Json* turns = value_of(record, column);
    if (turns != nullptr && turns->is_array() && !turns->empty()) return column;
  }
  return nullptr;
}

bool has_instruction(const Json& record) {
  const Json* instruction = value_of(record, "instruction");
  return instruction != nullptr && instruction->is_string() &&
         value_of(record, "chosen")->is_string() && value_of(record, "rejected")->is_string();
}

/// A turn, or a list with one.
bool has_sharegpt_turns(const Json* value) {
  if (value == nullptr) return false;
  if (value->is_array())
    return std::any_of(value->begin(), value->end(),
                       [](const Json& turn) { return has_sharegpt_turns(&turn); });
  return is_sharegpt_turn(*value) && value_of(*value, "role") == nullptr;
}

/// The turns, behind a turn for "system".
Json prompt_of_turns(const Json& record, const char* column, const std::string& where) {
  Json turns = Json::array();
  if (const std::string system = optional_string(record, "system", where); !system.empty())
    turns.push_back(message_of("system", system));
  for (const Json& turn : record[column]) turns.push_back(turn);
  return turns;
}

/// The answers as assistant turns behind the messages of an Alpaca record, or texts behind its text.
void read_alpaca_columns(Json& record, const TemplateTraits& chat_template,
                         const std::string& where) {
  record["output"] = "";
  RecordShape shape = shape_of(record, RecordFormat::kAlpaca, chat_template, where);
  record.erase("output");
  if (const auto* text = std::get_if<PlainText>(&shape)) {
    record["prompt"] = text->prompt;
    return;
  }
  Json messages = std::move(std::get<Conversation>(shape).messages);
  messages.erase(messages.size() - 1);
  record["prompt"] = std::move(messages);
}

}  // namespace

const Json& with_pair_columns(const Json& record, const TemplateTraits& chat_template,
                              const std::string& where, Json& room) {
  if (!is_preference(record)) return record;
  const bool has_prompt = value_of(record, "prompt") != nullptr;
  const char* turns = has_prompt ? nullptr : turns_before_answers(record);
  const bool is_alpaca = !has_prompt && has_instruction(record);
  bool has_sharegpt = false;
  for (const char* column : {"prompt", "chosen", "rejected"})
    has_sharegpt = has_sharegpt || has_sharegpt_turns(value_of(record, column));
  if (turns == nullptr && !is_alpaca && !has_sharegpt) return record;
  room = record;
  if (turns != nullptr) {
    room["prompt"] = prompt_of_turns(record, turns, where);
    for (const char* column : {turns, "system"}) room.erase(column);
  } else if (is_alpaca) {
    read_alpaca_columns(room, chat_template, where);
    for (const char* column : {"instruction", "input", "system"}) room.erase(column);
  }
  for (const char* column : {"prompt", "chosen", "rejected"}) {
    const auto value = room.find(column);
    if (value == room.end()) continue;
    const bool converts = has_sharegpt_turns(&*value);
    if (value->is_object() && (converts || turns != nullptr)) *value = Json::array({*value});
    if (converts) *value = messages_of_turns(*value, column, chat_template, where);
  }
  return room;
}

bool is_pair_rendered(const Json& record, bool has_chat_template) {
  const Json* chosen = value_of(record, "chosen");
  if (chosen == nullptr) return false;
  if (chosen->is_structured()) return true;
  const Json* prompt = value_of(record, "prompt");
  if (prompt != nullptr) return prompt->is_array() && !prompt->empty();
  return has_chat_template && is_preference(record) && has_instruction(record);
}

}  // namespace sftrun::data
