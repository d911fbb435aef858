#include "roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "sftrun/core/strings.h"

namespace sftrun::data {
namespace {

/// Those of the families' own templates.
constexpr std::array kKnown = {"system",   "developer", "user",        "assistant",    "tool",
                               "function", "ipython",   "observation", "tool_response"};

bool is_known(const std::string& role, const std::string& template_source) {
  if (std::find(kKnown.begin(), kKnown.end(), role) != kKnown.end()) return true;
  return template_source.find('\'' + role + '\'') != std::string::npos ||
         template_source.find('"' + role + '"') != std::string::npos;
}

}  // namespace

std::vector<std::string> unknown_roles(const Json& messages, const std::string& template_source) {
  std::vector<std::string> found;
  for (const Json& message : messages) {
    const auto& role = message["role"].get_ref<const std::string&>();
    if (is_known(role, template_source)) continue;
    if (std::find(found.begin(), found.end(), role) == found.end()) found.push_back(role);
  }
  return found;
}

std::string likely_role(const std::string& role) {
  const std::string lower = ascii_lower(role);
  for (const char* name : {"gpt", "chatgpt", "bot", "model", "ai"}) {
    if (lower == name) return "assistant";
  }
  if (lower == "human") return "user";
  return nearest(lower, std::vector<std::string>(kKnown.begin(), kKnown.end()));
}

std::string fix_of_role(const std::string& role) {
  const bool is_plain = std::all_of(role.begin(), role.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  std::string key = excerpt(role);
  if (!is_plain || role.empty()) {  // as YAML quotes it
    for (size_t at = key.find('\''); at != std::string::npos; at = key.find('\'', at + 2))
      key.insert(at, 1, '\'');
    key = '\'' + key + '\'';
  }
  const std::string likely = likely_role(role);
  if (!likely.empty()) return fmt::format("data.fields: {{roles: {{{}: {}}}}}", key, likely);
  return fmt::format(
      "data.fields: {{roles: {{{}: ROLE}}}}, where ROLE is user, assistant, system or tool", key);
}

std::string advice_on_role(const std::string& role) {
  const std::string likely = likely_role(role);
  return (likely.empty() ? "" : fmt::format("did you mean `{}`? ", likely)) +
         "only turns of `assistant` are trained on; rename it by " + fix_of_role(role);
}

}  // namespace sftrun::data
