#include "roles.h"

#include <algorithm>
#include <array>

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

}  // namespace sftrun::data
