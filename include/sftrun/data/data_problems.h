#pragma once

#include <functional>
#include <optional>

#include "sftrun/config/problem.h"
#include "sftrun/core/error.h"

/// Errors of several data sets in one report.
namespace sftrun::data {

using config::DataProblems;

/// Continues after an error of one data set, so that errors of the others are reported, too.
class ProblemCollector {
 public:
  /// Calls `action` and keeps a DataError. Other errors are not caught.
  void run(const std::function<void()>& action);
  /// @throws the DataError if there is one, DataProblems if there are several
  void throw_if_any() const;

 private:
  std::optional<DataError> first_;
  config::Problems problems_;
};

}  // namespace sftrun::data
