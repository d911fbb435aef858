#pragma once

#include <cstdint>
#include <string>

namespace sftrun {

/// Optimizer steps, counted from 1: first, …, last. None: last is 0.
struct StepRange {
  int64_t first = 1, last = 0;
  bool is_empty() const { return last < first; }
};

/// "5" or "5-7"; "": none.   @param where the flag or key, for the error
/// @throws ConfigError
StepRange parse_step_range(const std::string& text, const std::string& where);

}  // namespace sftrun
