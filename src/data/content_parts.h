#pragma once

#include <set>
#include <string>
#include <vector>

#include "sftrun/data/text_model.h"
#include "sftrun/text/chat_template.h"

/// Message content as a list of parts, `[{"type": "text", "text": "…"}]`.
namespace sftrun::data {

using text::Json;

/// A part may lack its type, and have null or empty values of other keys, as tables give them.
/// @param name "messages[1].content"
/// @throws DataError for a part that is not text alone
void check_parts(const Json& parts, const std::string& name, const std::string& where);

/// Of the usual roles those for whose messages the template writes the texts of such content, all of
/// them. Templates for strings print the list itself, leave it out, or fail; some read parts of one
/// role only, or the first part.
std::set<std::string> roles_with_parts(const TextModel& model);

/// Brings checked content to the form that the template reads: an empty list is an empty string, a
/// part has its type and its text and nothing else, and the texts are joined with newlines where the
/// role is not among `with_parts`, as vLLM does for templates of strings.
void set_parts(Json& message, const std::set<std::string>& with_parts);

/// The texts of checked content: a string, or those of its parts; none if it is null or missing.
std::vector<const std::string*> texts_of(const Json& message);

}  // namespace sftrun::data
