#pragma once

#include "sftrun/data/sequence.h"
#include "sftrun/templates/chat_labels.h"

/// Finds parts of a conversation that are missing or misread in its rendered text.
namespace sftrun::data {

/// What is missing in the text: tool calls and reasoning of answers that are trained on, the record's
/// tools, and texts of messages. Text that cannot be followed through the template is only missing
/// if the template gives the same without it.
/// @param messages as they were rendered with `render`
LeftOut find_left_out(const templates::LabelledConversation& conversation, const Json& messages,
                      const templates::ChatTemplate& chat_template,
                      const templates::RenderOptions& render);

/// Removes the labels of answers of which the text shows nothing, because the template omits their
/// tool calls: training on the end of the turn would teach the model to answer nothing.
void drop_empty_answers(templates::LabelledConversation& conversation, const Json& messages);

/// Number of answers that are trained on although they are empty: no text, no call, no reasoning.
/// Parts without text and marks around no reasoning are empty, too.
int64_t count_empty_answers(const templates::LabelledConversation& conversation,
                            const Json& messages);

/// Number of messages whose text contains control tokens of the model (`<|im_end|>` typed by a
/// user): the tokenizer treats them as if the template had written them.
int64_t count_control_tokens(const templates::LabelledConversation& conversation,
                             const templates::LabelledTokens& tokens,
                             const tokenizer::Tokenizer& tokenizer);

}  // namespace sftrun::data
