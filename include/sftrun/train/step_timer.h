#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "sftrun/core/activity.h"
#include "sftrun/observe/metrics.h"

namespace sftrun::train {

/// The part of a step that a work belongs to. Waits for other ranks are communication, whatever
/// the work.
enum class StepPart { kData, kForward, kBackward, kCommunication, kOptimizer, kOther };
StepPart part_of(Work work, bool waits);

/// Measures how long the parts of one step take, with a mark at every change of what the rank does.
/// On a CPU a mark is the time of the host. On CUDA it is an event in the current stream of
/// `begin`, so the parts are the device's time, and nothing waits for the device: communication that
/// runs beside other work does not count, and the data loader only if the device has nothing else to
/// do. Call begin, mark, end, read, in this order, for each step. Not thread-safe.
class StepTimer {
 public:
  explicit StepTimer(at::Device device) : device_(device) {}

  void begin();
  /// Something else begins now. Does nothing outside `begin` and `end`. Never throws: a device that
  /// is lost is found by others.
  void mark(Work work, bool waits) noexcept;
  void end();
  /// Seconds from `begin` to `end`; all parts are 0 if they could not be measured. On CUDA valid
  /// when the device has passed `end`.
  observe::StepParts read() const;

 private:
  void add_mark(StepPart part);

  at::Device device_;
  bool is_running_ = false, is_complete_ = false;
  size_t num_marks_ = 0;
  std::vector<StepPart> parts_;     // that begin with each mark
  std::vector<double> host_s_;      // of each mark, on a CPU
  std::vector<c10::Event> events_;  // of each mark, on CUDA; kept for the next steps
  std::optional<c10::Stream> stream_;
};

}  // namespace sftrun::train
