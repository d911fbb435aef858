#pragma once

#include <cstdint>

namespace sftrun {

/// The first multiple that is not below a value >= 0.
constexpr int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace sftrun
