#pragma once

#include <string>
#include <vector>

#include "sftrun/core/error.h"

namespace sftrun::config {

/// One problem of a configuration.
struct Problem {
  std::string message, where, fix;
};
using Problems = std::vector<Problem>;

/// All problems in the form of `Error`, one below the other, without the first "error: ".
std::string report_of(const Problems& problems);

/// All problems of a configuration. `what()` lists them in the form of `Error`.
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
