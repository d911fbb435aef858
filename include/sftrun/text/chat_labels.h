#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/text/chat_template.h"
#include "sftrun/text/tokenizer.h"

/// Which bytes of a rendered conversation the assistant produced.
///
/// A label run starts where the generation prompt ends (what the template appends with
/// add_generation_prompt) and runs through the end-of-turn token, wherever the template emits it;
/// found from the origins of the emitted bytes, never by searching the text for markers. {%
/// generation %} marks, where a template has them, decide instead.
namespace sftrun::text {

enum class LossOn : uint8_t { kAssistant, kLastAssistant, kAll };

struct LabelledConversation {
  Rendered rendered;
  struct Run {
    ByteSpan span;
    int32_t message = -1;  ///< which message's turn
  };
  std::vector<Run> runs;  ///< in order, disjoint
};

/// Per-message `"train": false` (or `"weight": 0`) takes a turn's label away.
/// @throws DataError as `ChatTemplate::render`, and when an assistant message left no trace to
/// label.
LabelledConversation label_conversation(const ChatTemplate& chat_template,
                                        const Tokenizer& tokenizer, const Json& messages,
                                        const RenderOptions& options, LossOn loss_on);

/// Tokens of the text (no special tokens added) and, for each, 1 where it is learnt: where any of
/// its bytes lie in a run. An added token must begin in it (one that takes the white space behind
/// it may take an answer's first), and so must a space that the tokenizer itself puts in front of
/// a piece: behind the generation prompt it is the model's to write.
struct LabelledTokens {
  std::vector<TokenId> ids;
  std::vector<uint8_t> mask;
  std::vector<ByteSpan> spans;
};
LabelledTokens tokenize_labelled(const Tokenizer& tokenizer,
                                 const LabelledConversation& conversation);

}  // namespace sftrun::text
