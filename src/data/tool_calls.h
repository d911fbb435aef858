#pragma once

#include <optional>
#include <string>

#include "sftrun/data/text_model.h"
#include "sftrun/text/chat_template.h"

/// Tool calls of answers: `"tool_calls": [{"function": {"name", "arguments"}}]`.
namespace sftrun::data {

using text::Json;

/// How a template handles them.
struct CallSupport {
  bool writes = false;                ///< it writes them
  bool takes_strings = false;         ///< it writes arguments that are a JSON string unchanged
  bool takes_missing_content = true;  ///< of an answer with calls
};
CallSupport call_support(const TextModel& model);

/// Converts arguments that are a JSON string, as in OpenAI's API, to the object: most templates
/// expect that, and would quote the string again or fail.
void parse_arguments(Json& messages);

/// ShareGPT's `function_call` turn, {"name": …, "arguments": …} or a list of such, as tool_calls;
/// nullopt for other texts.
std::optional<Json> calls_of_text(const std::string& text);

}  // namespace sftrun::data
