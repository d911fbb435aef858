#pragma once

#include "sftrun/text/chat_labels.h"

/// Reasoning that a template writes although there is none (`<think>\n\n</think>`): learnt, it
/// teaches a reasoning model to think nothing.
namespace sftrun::data {

/// How many runs begin with empty reasoning. With `drop` they begin behind it instead.
int64_t find_empty_thinking(text::LabelledConversation& conversation, bool drop);

}  // namespace sftrun::data
