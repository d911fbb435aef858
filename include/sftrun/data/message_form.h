#pragma once

#include <string>

#include "sftrun/data/json_lines.h"
#include "sftrun/data/text_model.h"

/// Messages in the form that a model's chat template reads: templates differ in what they know of
/// OpenAI's format.
namespace sftrun::data {

/// Finds by a few probes what the template of a model does:
/// - content that is a list of text parts is joined by newlines for a template of strings
/// - arguments of calls that are a string of JSON become the object, for a template that would
///   quote the string once more or fail
/// - what is null in a message is left out, as transformers' apply_chat_template does it
/// - content that is missing beside a call becomes "" for a template that fails on that
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

/// @param key "messages", for errors   @throws DataError for what is no list of messages, and for a
/// message without content that makes no call
void require_messages(const Json& messages, const std::string& key, const std::string& where);

}  // namespace sftrun::data
