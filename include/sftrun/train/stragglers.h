#pragma once

#include <array>
#include <set>
#include <string>
#include <vector>

#include "sftrun/core/activity.h"

/// Ranks that are slower than the others in every step, so that the others wait for them.
namespace sftrun::train {

/// The parts of a step that all ranks have. What only rank 0 does (metrics, checkpoints) is not
/// counted.
inline constexpr std::array kStepWorks = {Work::kDataLoader, Work::kForward, Work::kBackward,
                                          Work::kOptimizer, Work::kTraining};
/// Seconds of each of them, without waits for other ranks. On a GPU it is the host's time.
using WorkSeconds = std::array<double, kStepWorks.size()>;

/// Measures the work of this rank, step by step.
class WorkMeter {
 public:
  /// @param activity must outlive this object; null: there is nothing to measure
  explicit WorkMeter(Activity* activity) : activity_(activity) {}
  /// Seconds since the last call, or since the start of the process.
  WorkSeconds of_step();

 private:
  Activity* activity_;
  WorkSeconds before_{};  // until the last call
};

/// Compares the ranks' own work over windows of steps. A rank whose work takes `kFactor` times the
/// median of the other ranks in `kWindows` windows one after the other is named, once.
class StragglerWatch {
 public:
  static constexpr int kWindowSteps = 20, kWindows = 2;
  static constexpr double kFactor = 1.5;
  static constexpr double kMinExcessS = 0.02;  ///< per step; less is noise

  /// @param work of one step, by rank
  /// @return for each rank found in this step: "rank 3 is slow: its own work takes 2.1 times that of
  /// the other ranks (310 ms instead of 148 ms a step, most of it in the data loader) …"
  std::vector<std::string> add(const std::vector<WorkSeconds>& work);

 private:
  std::vector<std::string> close_window();

  int steps_ = 0;                  // in this window
  std::vector<WorkSeconds> sums_;  // over this window, by rank
  std::vector<int> slow_windows_;  // in a row, by rank
  std::set<int> named_;
};

}  // namespace sftrun::train
