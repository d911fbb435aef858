#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sftrun/data/json_lines.h"
#include "sftrun/data/media.h"
#include "sftrun/data/message_form.h"
#include "sftrun/data/sequence.h"
#include "sftrun/data/text_model.h"

/// Converts records to the tokens of a prompt.
namespace sftrun::data {

struct PromptTokens {
  std::vector<tokenizer::TokenId> ids;
  std::vector<SequenceMedia> media;  ///< in order
};

/// The prompt of each record format; an answer in the record is ignored:
///
///   messages, sharegpt      the conversation up to the last answer
///   prompt (completion)     a list of messages, or a string
///   instruction (output)    "instruction\n\ninput", after "system"
///   text                    the text
///
/// With chat, strings of the second and third become a user message, else they are text to
/// continue. Messages are rendered by the chat template with its generation prompt; texts get the
/// special tokens that the tokenizer puts before them, and none behind: the tokens are those with
/// which a training example begins. "tools" and "chat_template_kwargs" are read as in training.
/// Immutable; safe to use from several threads.
class PromptBuilder {
 public:
  /// @param chat strings are a user's turn; only for a model with a chat template
  PromptBuilder(TextModel model, bool chat);

  /// @param where "file:line", for errors   @param folder that paths of images are relative to
  /// @return the tokens, maybe none
  /// @throws DataError for keys that are missing or of the wrong type, for conversations when the
  /// model has no chat template, for what the template refuses, for tokens that the model has no
  /// embedding of, and for images that cannot be read
  PromptTokens build(const Json& record, const std::string& where,
                     const std::filesystem::path& folder = {}) const;
  /// The same with its text and the parts of that; no token has a label.
  /// @param stamps notes files of images; null: nothing does   @throws DataError, as build
  Sequence sequence_of(const Json& record, const std::string& where,
                       const std::filesystem::path& folder, MediaStamps* stamps) const;
  /// Whether the chat template renders the record's prompt.   @throws DataError, as build
  bool renders(const Json& record, const std::string& where) const;

 private:
  TextModel model_;
  bool chat_ = false;
  MessageForm form_;
};

}  // namespace sftrun::data
