#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "sftrun/templates/chat_labels.h"

namespace sftrun::templates {

/// Finds special tokens in a piece of literal text.
using FindSpecials = std::function<std::vector<tokenizer::ByteSpan>(std::string_view text)>;

/// The turn of one assistant message in `full`, the rendering of all messages.
///
/// A turn begins where the generation prompt of the conversation before it ends, and ends with the
/// end-of-turn token after its last byte. Both are aligned with `full` by origins: at the last byte
/// that comes from an earlier message (begin) or from this one (end), so that templates which
/// render earlier turns differently from the last one are handled. Content that the template writes
/// after a later message is a separate run (Gemma 4 writes the text of a message with tool calls
/// after the tools' answers). Empty if the template omits the message.
std::vector<LabelledConversation::Run> find_turn(const ChatTemplate& chat_template,
                                                 const Json& messages, const RenderOptions& options,
                                                 const Rendered& full,
                                                 const FindSpecials& find_specials,
                                                 int32_t message);

}  // namespace sftrun::templates
