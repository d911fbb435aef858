#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/templates/chat_template.h"
#include "sftrun/tokenizer/tokenizer.h"

/// Finds the bytes of a rendered conversation that the assistant produced.
///
/// A label run starts where the generation prompt ends (what the template appends with
/// add_generation_prompt) and ends with the end-of-turn token. It is found from the origins of the
/// rendered bytes, not by searching the text for markers. If the template has {% generation %}
/// marks, they decide instead.
namespace sftrun::templates {

enum class LossOn : uint8_t { kAssistant, kLastAssistant, kAll };

struct LabelledConversation {
  Rendered rendered;
  struct Run {
    tokenizer::ByteSpan span;
    int32_t message = -1;  ///< index of the message
    float weight = 1;      ///< of its labels: the message's `"weight"`
  };
  std::vector<Run> runs;  ///< in order, disjoint
};

/// A message with `"train": false` (or `"weight": 0`) is not labelled. With `kAll` a message with
/// another weight has runs of its own.
/// @throws DataError as `ChatTemplate::render`, and if the template omits an assistant message.
LabelledConversation label_conversation(const ChatTemplate& chat_template,
                                        const tokenizer::Tokenizer& tokenizer, const Json& messages,
                                        const RenderOptions& options, LossOn loss_on);

/// Tokens of the text (no special tokens added), and a mask: 1 for tokens that are trained on,
/// which have at least one byte in a run. Added tokens must begin in the run, because they may
/// include white space of an answer. So must a space that the tokenizer adds before a piece: after
/// the generation prompt the model generates it.
struct LabelledTokens {
  std::vector<tokenizer::TokenId> ids;
  std::vector<uint8_t> mask;
  std::vector<tokenizer::ByteSpan> spans;
};
LabelledTokens tokenize_labelled(const tokenizer::Tokenizer& tokenizer,
                                 const LabelledConversation& conversation);

}  // namespace sftrun::templates
