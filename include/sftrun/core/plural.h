#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace sftrun {

/// "step" for one, "steps" for any other number.
std::string plural(std::string_view word, std::integral auto count) {
  return std::string(word) + (count == 1 ? "" : "s");
}

/// "1 step", "20 steps"
std::string counted(std::integral auto count, std::string_view word) {
  return std::to_string(count) + " " + plural(word, count);
}

}  // namespace sftrun
