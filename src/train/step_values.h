#pragma once

#include <limits>
#include <optional>
#include <string_view>

#include "sftrun/observe/metrics.h"

namespace sftrun::train {

/// The loss of a rank, or of an evaluation, without terms.
inline constexpr double kNoLoss = std::numeric_limits<double>::quiet_NaN();

/// The value of this name; nullopt: there is none.
inline std::optional<double> value_of(const observe::NamedValues& values, std::string_view name) {
  for (const auto& [key, value] : values)
    if (key == name) return value;
  return std::nullopt;
}

}  // namespace sftrun::train
