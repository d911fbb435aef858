#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>

#include "sftrun/core/activity.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::parallel {

/// The message of a c10d error without the C++ stack trace after its first line, and without Gloo's
/// place in its source before it.
inline std::string first_line(const char* what) {
  const std::string text = what;
  const std::string line = text.substr(0, text.find('\n'));
  const size_t end = line.find("] ");
  return line.starts_with("[/") && end != std::string::npos ? line.substr(end + 2) : line;
}

/// Runs an operation that waits for other ranks, and converts its failure to a CommError.
/// @param activity of this rank   @param where "rank 1 of 4, gloo"
/// @param group of `Activity::name_group`; 0: all ranks
template <typename Body>
void run_guarded(Activity* activity, const char* what, const std::string& where, int group,
                 Body&& body) {
  const WaitScope wait(activity, what, group);
  const kernels::ProfileRange range(std::string(kernels::kWaitRange) + what);
  try {
    body();
  } catch (const std::exception& e) {
    throw CommError(fmt::format("{} failed: {}", what, first_line(e.what())), where,
                    "another rank stopped or the network broke; see the logs of the other ranks");
  }
}

}  // namespace sftrun::parallel
