#pragma once

#include <string>

#include "sftrun/data/json_lines.h"
#include "sftrun/data/text_model.h"

/// Converts messages to the form that a model's chat template reads: templates support different
/// parts of OpenAI's format.
namespace sftrun::data {

/// Tests the template of a model with a few conversations, and converts accordingly:
/// - content that is a list of text parts is joined with newlines for a template of strings
/// - arguments of calls that are a JSON string become the object, for a template that would quote
///   the string again or fail
/// - null values of a message are removed, as in transformers' apply_chat_template
/// - missing content beside a call becomes "" for a template that would fail otherwise
class MessageForm {
 public:
  MessageForm() = default;
  /// @param model with or without a chat template
  explicit MessageForm(const TextModel& model);

  /// @param messages that passed require_messages
  void apply(Json& messages) const;
  bool writes_calls() const { return writes_calls_; }  ///< of tools

 private:
  bool joins_parts_ = false, writes_calls_ = false, parses_calls_ = false, fills_content_ = false;
};

/// @param key "messages", for errors   @throws DataError if it is not a list of messages, or if a
/// message has neither content nor calls
void require_messages(const Json& messages, const std::string& key, const std::string& where);

}  // namespace sftrun::data
