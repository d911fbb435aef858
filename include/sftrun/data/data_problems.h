#pragma once

#include <functional>
#include <optional>

#include "sftrun/config/problem.h"
#include "sftrun/core/error.h"

/// Errors of several data sets in one report.
namespace sftrun::data {

using config::DataProblems;

/// Goes on after an error of one data set, so that those of the others are reported, too.
class ProblemCollector {
 public:
  /// Calls `action`; keeps the DataError that it throws. Other errors pass.
  void run(const std::function<void()>& action);
  /// @throws the DataError as it was where there is one, DataProblems where there are several
  void throw_if_any() const;

 private:
  std::optional<DataError> first_;
  config::Problems problems_;
};

}  // namespace sftrun::data
