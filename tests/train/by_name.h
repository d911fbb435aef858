#pragma once

#include <map>
#include <string>

#include "sftrun/observe/metrics.h"

namespace sftrun::train {

/// Metrics of a step, to be looked up.
inline std::map<std::string, double> by_name(const observe::NamedValues& values) {
  return {values.begin(), values.end()};
}

}  // namespace sftrun::train
