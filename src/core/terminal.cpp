#include "sftrun/core/terminal.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace sftrun {

bool is_redrawable(int fd) {
  const char* term = std::getenv("TERM");
  return term != nullptr && *term != '\0' && std::string_view(term) != "dumb" && ::isatty(fd) != 0;
}

bool wants_no_color() {
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && *value != '\0';
}

}  // namespace sftrun
