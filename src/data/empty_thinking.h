#pragma once

#include "sftrun/text/chat_labels.h"

/// Empty reasoning that a template writes (`<think>\n\n</think>`): training on it teaches a
/// reasoning model not to reason.
namespace sftrun::data {

/// Number of runs that begin with empty reasoning. With `drop` the runs are shortened to begin
/// after it.
int64_t find_empty_thinking(text::LabelledConversation& conversation, bool drop);

}  // namespace sftrun::data
