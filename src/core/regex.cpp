#include "sftrun/core/regex.h"

#include <regex>

namespace sftrun {

bool is_regex(const std::string& text) {
  try {
    const std::regex compiled(text);
    return true;
  } catch (const std::regex_error&) {
    return false;
  }
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '.') result += '\\';
    result += c;
  }
  return result;
}

}  // namespace sftrun
