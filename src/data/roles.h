#pragma once

#include <string>
#include <vector>

#include "sftrun/data/json_lines.h"

/// Roles of messages. Templates may have roles of their own, so none is refused; but the turns of a
/// misspelt "assistant" are rendered and never learnt.
namespace sftrun::data {

/// The roles in a conversation that no known template uses and that this template's source does not
/// name, each once.
std::vector<std::string> unknown_roles(const Json& messages, const std::string& template_source);

/// What may be meant: "assistant" for "asistant" and for "gpt"; empty: nobody knows.
std::string likely_role(const std::string& role);

}  // namespace sftrun::data
