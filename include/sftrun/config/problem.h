#pragma once

#include <string>
#include <vector>

#include "sftrun/core/error.h"

namespace sftrun::config {

/// One thing wrong with a configuration.
struct Problem {
  std::string message, where, fix;
};
using Problems = std::vector<Problem>;

/// The reports of all problems, one below the other as `Error` shows one, without the first
/// "error: ".
std::string report_of(const Problems& problems);

/// Every problem of a configuration in one report: `what()` shows them one below the other, as
/// `Error` shows one.
struct ConfigProblems : ConfigError {
  explicit ConfigProblems(Problems all);
  Problems problems;
};

/// Several errors of data in one report.
struct DataProblems : DataError {
  explicit DataProblems(Problems all);
  Problems problems;
};

/// @throws ConfigProblems if there are any.
void throw_if_any(const Problems& problems);

}  // namespace sftrun::config
