#pragma once

#include <string>

#include "sftrun/data/text_model.h"
#include "sftrun/text/chat_template.h"

/// Message content as a list of parts, `[{"type": "text", "text": "…"}]`.
namespace sftrun::data {

using text::Json;

/// @param name "messages[1].content"   @throws DataError for a part that is not text
void check_parts(const Json& parts, const std::string& name, const std::string& where);

/// Whether the template writes the text of such content. Templates for strings print the list
/// itself, or fail.
bool reads_parts(const TextModel& model);

/// Joins the messages' text parts with newlines, as vLLM does for templates of strings.
void join_parts(Json& messages);

}  // namespace sftrun::data
