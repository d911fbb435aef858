#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/json_lines.h"
#include "sftrun/data/text_model.h"

/// A record to token sequences and which tokens carry a label.
namespace sftrun::data {

enum class RecordFormat { kMessages, kShareGpt, kPromptCompletion, kAlpaca, kText };
std::string name_of(RecordFormat format);  ///< as `data.format` has it

/// The format of a record and why: the first whose keys it holds, of messages, sharegpt,
/// prompt_completion, alpaca, text.
struct DetectedFormat {
  RecordFormat format = RecordFormat::kText;
  std::string reason;  ///< "it has \"messages\""
};
/// @param where "file:line"   @throws DataError listing the keys it has and those it could have
DetectedFormat detect_format(const Json& record, const std::string& where);

/// What a conversation holds and its template leaves out of the text.
struct LeftOut {
  int64_t tool_calls = 0;         ///< learnt answers without the calls they make
  int64_t reasoning = 0;          ///< 1: the last learnt answer without its reasoning
  int64_t earlier_reasoning = 0;  ///< earlier ones without theirs
  int64_t tools = 0;              ///< 1: none of the record's tools
};

/// One sequence, before it is cut to length and its labels are shifted.
struct Sequence {
  std::vector<text::TokenId> ids;
  std::vector<uint8_t> mask;  ///< 1: the token is to be learnt
  std::vector<text::ByteSpan>
      spans;         ///< bytes of `text` that each token covers; empty for added BOS and EOS
  std::string text;  ///< what was tokenised
  struct Part {
    text::ByteSpan span;
    std::string name;      ///< "user content", "template", "completion", …
    int32_t message = -1;  ///< index into the record's messages, -1 for none
  };
  std::vector<Part> parts;         ///< in order, covering `text`; only when asked for
  int64_t num_empty_thinking = 0;  ///< answers that begin with empty reasoning
  int64_t num_control_tokens = 0;  ///< messages whose own text holds control tokens of the model
  LeftOut left_out;
  std::vector<std::string> unknown_roles;  ///< of the record; on its first sequence
};

struct SequenceOptions {
  config::LossOnChoice loss_on = config::LossOnChoice::kAssistant;
  config::Thinking thinking = config::Thinking::kTemplate;
  config::EmptyThinking empty_thinking = config::EmptyThinking::kWarn;
  Json chat_template_kwargs = Json::object();
  bool append_eos =
      true;  ///< after texts and string completions; conversations end as their template has it
  bool with_parts = false;
};

/// Turns records of one format into sequences. What is learnt (mask) depends on `loss_on`:
///
///   record                              assistant               last_assistant   completion all
///   messages, sharegpt, alpaca          every assistant turn    the last turn    the last turn
///   everything prompt_completion of message lists  those in `completion`   the last turn    all
///   after the prompt    everything prompt_completion of strings        completion completion
///   completion              everything text                                everything everything
///   everything              everything
///
/// Conversations (the first two) are rendered by the chat template and get no special tokens but
/// those it writes. Alpaca records are a user turn "instruction\n\ninput" and an assistant turn;
/// for a model without a chat template, the strings "instruction\n\ninput\n\n" and output. Texts
/// and strings get the tokenizer's own special tokens and an EOS at the end; a token that crosses
/// from prompt to completion is learnt.
///
/// A record may carry "tools" and "chat_template_kwargs" (over the configuration's); a message
/// `"train": false` or
/// `"weight": 0`. `thinking: split` with `loss_on: assistant` makes a sequence of each user turn
/// and what answers it, after all that stands before it, so that every answer is learnt with its
/// reasoning where the template drops that of earlier turns; `keep` asks the template, by the
/// variables that templates read, to keep it.
///
/// Content may be a list of text parts; for a template that reads strings only they are joined by
/// newlines.
///
/// Immutable; safe to use from several threads.
class SequenceBuilder {
 public:
  SequenceBuilder(RecordFormat format, TextModel model, SequenceOptions options);

  /// @param where "file:line", for errors
  /// @return one sequence, or with `thinking: split` one or more
  /// @throws DataError for keys that are missing or of the wrong type, for conversations when the
  /// model has no chat template, and
  ///   for what the template refuses
  std::vector<Sequence> build(const Json& record, const std::string& where) const;

 private:
  std::vector<Sequence> build_unchecked(const Json& record, const std::string& where) const;

  RecordFormat format_;
  TextModel model_;
  SequenceOptions options_;
  bool joins_parts_ = false;   ///< the chat template reads content that is a string only
  bool writes_calls_ = false;  ///< it writes calls of tools
  bool parses_calls_ = false;  ///< and reads arguments that are an object only
};

}  // namespace sftrun::data
