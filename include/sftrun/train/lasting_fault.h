#pragma once

#include <cstdint>

namespace sftrun::train {

/// A fault of a run that is named when it has lasted for some steps, once until it has gone.
class LastingFault {
 public:
  static constexpr int64_t kSteps = 5;

  /// @return whether the fault is to be named now
  bool add(bool has_fault) {
    steps_ = has_fault ? steps_ + 1 : 0;
    return steps_ == kSteps;
  }

 private:
  int64_t steps_ = 0;  // in a row that have it
};

}  // namespace sftrun::train
