#pragma once

#include <cstddef>
#include <string>
#include <variant>

#include "sftrun/data/json_lines.h"
#include "sftrun/data/sequence.h"

namespace sftrun::data {

/// A record of any format as a conversation.
struct Conversation {
  Json messages = Json::array();   ///< objects with a string "role"
  size_t num_prompt_messages = 0;  ///< leading messages that are not trained on
  Json tools;                      ///< null or array
  Json kwargs = Json::object();    ///< the record's own chat_template_kwargs
};
/// A record as text. Only the completion is trained on.
struct PlainText {
  std::string prompt, completion;
};
using RecordShape = std::variant<Conversation, PlainText>;

/// A record's keys for messages: `"id", "text"`; "none".
std::string keys_of(const Json& record);

/// Properties of the model's chat template that affect how records are read.
struct TemplateTraits {
  bool exists = true;         ///< without one Alpaca records are plain text
  bool writes_calls = false;  ///< of tools: ShareGPT's `function_call` turns become such
};

/// @param where "file:line"
/// @throws DataError for keys that are missing or of the wrong type
RecordShape shape_of(const Json& record, RecordFormat format, const TemplateTraits& chat_template,
                     const std::string& where);

}  // namespace sftrun::data
