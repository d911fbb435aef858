#pragma once

#include <vector>

#include "sftrun/templates/chat_labels.h"
#include "turn_finder.h"

namespace sftrun::templates {

/// The assistant's turns in `full`, the rendering of all messages.
/// @param labelled the messages with their `train` and `weight`
/// @throws DataError if the template omits an assistant message that they do not exclude.
std::vector<LabelledConversation::Run> find_label_runs(const ChatTemplate& chat_template,
                                                       const Json& messages, const Json& labelled,
                                                       const RenderOptions& options,
                                                       const Rendered& full,
                                                       const FindSpecials& find_specials);

bool is_assistant(const Json& message);
/// Whether the message's `train` or `weight` excludes it from training.
bool is_excluded(const Json& message);
/// `label_conversation` without a tokenizer.
LabelledConversation label_with_specials(const ChatTemplate& chat_template, const Json& messages,
                                         const RenderOptions& options, LossOn loss_on,
                                         const FindSpecials& find_specials);

}  // namespace sftrun::templates
