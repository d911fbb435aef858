#pragma once

#include <memory>
#include <string>

#include "sftrun/data/json_lines.h"
#include "sftrun/data/text_model.h"

/// Converts messages to the form that a model's chat template reads: templates support different
/// parts of OpenAI's format.
namespace sftrun::data {

/// Tests the template of a model with a few conversations, and converts accordingly:
/// - content that is a list of text parts is joined with newlines for roles of which the template
///   reads strings, and a string becomes a part for roles of which it reads only parts; a part gets
///   its type, and an empty list becomes ""
/// - arguments of calls that are a JSON string become the object for a template that would quote the
///   string again, enclose it or fail; an object becomes the string for a template of strings
/// - missing arguments become {}; "function_call" becomes "tool_calls" for a template that does not
///   know it; calls without "function" get it for a template that requires it
/// - null values of a message and of its calls are removed, as transformers' apply_chat_template
///   does for messages
/// - missing content beside a call becomes "" for a template that would fail otherwise
class MessageForm {
 public:
  MessageForm() = default;
  /// @param model with or without a chat template
  explicit MessageForm(const TextModel& model);

  /// @param messages that passed require_messages
  void apply(Json& messages) const;
  bool writes_calls() const;  ///< of tools

 private:
  struct Support;
  std::shared_ptr<const Support> support_;  ///< null: no template
};

/// @param key "messages", for errors   @throws DataError if it is not a list of messages, or if a
/// message has neither content nor calls, or parts or calls that cannot be read
void require_messages(const Json& messages, const std::string& key, const std::string& where);

}  // namespace sftrun::data
