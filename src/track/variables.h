#pragma once

#include <cstdlib>
#include <string>

namespace sftrun::track {

/// A variable of the environment; "": not set.
inline std::string variable(const std::string& name) {
  const char* value =
      name.empty()
          ? nullptr
          : std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): nobody sets it now
  return value == nullptr ? "" : value;
}

}  // namespace sftrun::track
