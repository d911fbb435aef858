#pragma once

#include <string>
#include <vector>

#include "sftrun/data/json_lines.h"

/// Roles of messages. Templates may define roles, so none is refused. But turns with a misspelt
/// "assistant" are rendered and not trained on.
namespace sftrun::data {

/// The roles in a conversation that no known template uses and that this template's source does not
/// name, each once.
std::vector<std::string> unknown_roles(const Json& messages, const std::string& template_source);

/// The role that is probably meant: "assistant" for "asistant" and "gpt"; empty: unknown.
std::string likely_role(const std::string& role);

/// The setting that gives a role its known name: "data.fields: {roles: {GPT: assistant}}".
std::string fix_of_role(const std::string& role);

/// What to do about an unknown role, for a warning.
std::string advice_on_role(const std::string& role);

}  // namespace sftrun::data
