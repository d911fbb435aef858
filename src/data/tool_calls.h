#pragma once

#include <optional>
#include <string>

#include "sftrun/data/text_model.h"
#include "sftrun/text/chat_template.h"

/// Calls of tools that answers make: `"tool_calls": [{"function": {"name", "arguments"}}]`.
namespace sftrun::data {

using text::Json;

/// What a template makes of them.
struct CallSupport {
  bool writes = false;         ///< they are in its text
  bool takes_strings = false;  ///< arguments that are a string of JSON stand there as they are
  bool takes_missing_content = true;  ///< of an answer that calls
};
CallSupport call_support(const TextModel& model);

/// Arguments that are a string of a JSON object, as OpenAI's API has them, become the object: most
/// templates are written for that, and would quote the string once more, or fail.
void parse_arguments(Json& messages);

/// ShareGPT's `function_call` turn, {"name": …, "arguments": …} or a list of such, as tool_calls;
/// nullopt where the text is something else.
std::optional<Json> calls_of_text(const std::string& text);

}  // namespace sftrun::data
