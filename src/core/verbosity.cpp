#include "sftrun/core/verbosity.h"

#include <cstdlib>

namespace sftrun::log {

std::optional<Verbosity> parse_verbosity(std::string_view word) {
  if (word == "quiet") return Verbosity::kQuiet;
  if (word == "normal") return Verbosity::kNormal;
  if (word == "verbose") return Verbosity::kVerbose;
  return std::nullopt;
}

Verbosity verbosity() {
  const char* word = std::getenv(kVerbosityVariable);
  return word == nullptr ? Verbosity::kNormal : parse_verbosity(word).value_or(Verbosity::kNormal);
}

}  // namespace sftrun::log
