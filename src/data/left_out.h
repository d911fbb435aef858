#pragma once

#include "sftrun/data/sequence.h"
#include "sftrun/text/chat_labels.h"

/// What training on a rendered conversation would quietly miss or misread.
namespace sftrun::data {

/// What the conversation holds and the text shows nothing of: tool calls of an answer that is
/// learnt, answers' reasoning, the record's tools.
LeftOut find_left_out(const text::LabelledConversation& conversation, const Json& messages,
                      const Json& tools);

/// Takes the labels off answers of whose message the text shows nothing, since the template drops
/// the calls they make: what is left of the turn, its end, would teach to say nothing.
void drop_empty_answers(text::LabelledConversation& conversation, const Json& messages);

/// How many answers that are learnt hold nothing: no text, no call, no reasoning.
int64_t count_empty_answers(const text::LabelledConversation& conversation, const Json& messages);

/// How many messages hold control tokens of the model in their own text (`<|im_end|>` typed by a
/// user): the tokenizer reads them as if the template had written them.
int64_t count_control_tokens(const text::LabelledConversation& conversation,
                             const text::LabelledTokens& tokens, const text::Tokenizer& tokenizer);

}  // namespace sftrun::data
