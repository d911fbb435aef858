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

}  // namespace sftrun
