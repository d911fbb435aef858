#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

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

/// A record's keys with values, for messages: `"id", "text"`; "none".
std::string keys_of(const Json& record);

/// @throws DataError for a record that holds token ids in place of text
void refuse_token_ids(const Json& record, const std::string& where);

/// The conversation "chosen" or "rejected", or the text; of a record of another format the only one.
struct NamedShape {
  const char* name = "";
  RecordShape shape;
};

/// Properties of the model's chat template that affect how records are read.
struct TemplateTraits {
  bool exists = true;         ///< without one Alpaca records are plain text
  bool writes_calls = false;  ///< of tools: ShareGPT's `function_call` turns become such
  bool reads_images = false;  ///< else records with images in conversations are refused
};

/// @param format not preference   @param where "file:line"
/// @throws DataError for keys that are missing or of the wrong type
RecordShape shape_of(const Json& record, RecordFormat format, const TemplateTraits& chat_template,
                     const std::string& where);

/// Of any format: one, or of a preference record two, chosen and rejected. What both answers have
/// before them is the conversation's prompt messages, or the text's prompt: "prompt", or without it
/// (or with a text beside conversations) what "chosen" and "rejected" begin with alike, as in TRL's
/// extract_prompt.   @throws DataError as `shape_of`
std::vector<NamedShape> shapes_of(const Json& record, RecordFormat format,
                                  const TemplateTraits& chat_template, const std::string& where);

}  // namespace sftrun::data
