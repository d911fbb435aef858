#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "sftrun/core/activity.h"

namespace at {
struct RecordFunction;
}

namespace sftrun::kernels {

/// A named range in LibTorch's profiler during its lifetime, as `record_function` in Python. Without
/// a running profiler it costs some nanoseconds. Ranges of a thread end in the reverse order of their
/// begins.
class ProfileRange {
 public:
  explicit ProfileRange(std::string_view name);
  /// "<name> <number>": "layer 3".
  ProfileRange(std::string_view name, int64_t number);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  std::unique_ptr<at::RecordFunction> range_;  // null: no profiler runs
};

/// The name of a work's range: "forward", "data loader".
std::string_view range_name(Work work);
/// Names of the ranges of waits for other ranks begin with it.
inline constexpr std::string_view kWaitRange = "wait: ";

/// A part of a step: recorded as what the rank does now (core/activity.h), and as a range.
class WorkRange {
 public:
  /// @param activity may be null
  WorkRange(Activity* activity, Work work) : scope_(activity, work), range_(range_name(work)) {}

 private:
  WorkScope scope_;
  ProfileRange range_;
};

}  // namespace sftrun::kernels
