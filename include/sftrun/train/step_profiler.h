#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "sftrun/core/step_range.h"
#include "sftrun/kernels/profile_range.h"

/// `sftrun train --profile`: a trace of chosen steps with named ranges, and a page that says where
/// their time goes (docs/profiling.md).
namespace sftrun::train {

/// Profiles the steps of one rank with LibTorch's Kineto. The rank's thread calls `begin` and `end`
/// around every step.
class StepProfiler {
 public:
  /// @param folder of the files, made when they are written
  StepProfiler(StepRange steps, std::filesystem::path folder, int rank, at::Device device);
  /// Ends a profile that is running, without files.
  ~StepProfiler();
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  /// Whether the profile ends with this step, so that nothing of it may be left queued.
  bool ends_with(int64_t step) const { return is_running_ && step >= steps_.last; }
  void begin(int64_t step);
  /// Writes rank-N.json and rank-N.txt after the last of the steps.
  /// @throws DeviceError if they cannot be written
  void end(int64_t step);
  /// The run ends: writes what was profiled if it ends before the last of the steps.
  void finish();

 private:
  void start();
  void write(int64_t last);

  StepRange steps_;
  std::filesystem::path folder_;
  int rank_;
  at::Device device_;
  bool is_running_ = false;
  int64_t began_with_ = 0, ended_with_ = 0;  // steps
  std::optional<kernels::ProfileRange> step_;
};

}  // namespace sftrun::train
