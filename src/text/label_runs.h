#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "sftrun/text/chat_labels.h"

namespace sftrun::text {

/// Where special tokens stand in a piece of literal text.
using FindSpecials = std::function<std::vector<ByteSpan>(std::string_view text)>;

/// The assistant's turns in `full`, which is what the template makes of all messages.
///
/// A turn begins where the generation prompt of the conversation before it ends, and ends with the end-of-turn token
/// after its last byte. Both are aligned with `full` by origins: at the last byte that comes from an earlier message
/// (begin) or from this one (end), so that templates which render history otherwise than the last turn do no harm.
/// @throws DataError when an assistant message left no trace in the text.
std::vector<LabelledConversation::Run> find_label_runs(const ChatTemplate& chat_template, const Json& messages,
                                                       const RenderOptions& options, const Rendered& full,
                                                       const FindSpecials& find_specials);

bool is_assistant(const Json& message);
/// Whether the message's `train` or `weight` asks for no label.
bool is_excluded(const Json& message);
/// `label_conversation` without a tokenizer.
LabelledConversation label_with_specials(const ChatTemplate& chat_template, const Json& messages,
                                         const RenderOptions& options, LossOn loss_on, const FindSpecials& find_specials);

}  // namespace sftrun::text
