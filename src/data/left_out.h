#pragma once

#include "sftrun/data/sequence.h"
#include "sftrun/text/chat_labels.h"

/// Finds parts of a conversation that are missing or misread in its rendered text.
namespace sftrun::data {

/// Parts of the conversation that are not in the text: tool calls of an answer that is trained on,
/// answers' reasoning, the record's tools.
LeftOut find_left_out(const text::LabelledConversation& conversation, const Json& messages,
                      const Json& tools);

/// Removes the labels of answers of which the text shows nothing, because the template omits their
/// tool calls: training on the end of the turn would teach the model to answer nothing.
void drop_empty_answers(text::LabelledConversation& conversation, const Json& messages);

/// Number of answers that are trained on although they are empty: no text, no call, no reasoning.
int64_t count_empty_answers(const text::LabelledConversation& conversation, const Json& messages);

/// Number of messages whose text contains control tokens of the model (`<|im_end|>` typed by a
/// user): the tokenizer treats them as if the template had written them.
int64_t count_control_tokens(const text::LabelledConversation& conversation,
                             const text::LabelledTokens& tokens, const text::Tokenizer& tokenizer);

}  // namespace sftrun::data
