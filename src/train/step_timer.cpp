#include "sftrun/train/step_timer.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "sftrun/core/clock.h"

namespace sftrun::train {
namespace {

/// The member of a part.
double& seconds_in(observe::StepParts& parts, StepPart part) {
  switch (part) {
    case StepPart::kData:
      return parts.data;
    case StepPart::kForward:
      return parts.forward;
    case StepPart::kBackward:
      return parts.backward;
    case StepPart::kCommunication:
      return parts.communication;
    case StepPart::kOptimizer:
      return parts.optimizer;
    case StepPart::kOther:
      break;
  }
  return parts.other;
}

}  // namespace

StepPart part_of(Work work, bool waits) {
  if (waits) return StepPart::kCommunication;
  switch (work) {
    case Work::kDataLoader:
      return StepPart::kData;
    case Work::kForward:
      return StepPart::kForward;
    case Work::kBackward:
      return StepPart::kBackward;
    case Work::kOptimizer:
      return StepPart::kOptimizer;
    default:
      return StepPart::kOther;
  }
}

void StepTimer::begin() {
  num_marks_ = 0;
  is_running_ = true;
  is_complete_ = false;
  if (device_.is_cuda()) stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  mark(Work::kTraining, /*waits=*/false);
}

void StepTimer::mark(Work work, bool waits) noexcept {
  if (!is_running_) return;
  try {
    add_mark(part_of(work, waits));
  } catch (const c10::Error&) {
    is_running_ = false;
  }
}

void StepTimer::add_mark(StepPart part) {
  // A range inside one of the same part changes nothing.
  if (num_marks_ > 0 && parts_[num_marks_ - 1] == part) return;
  if (parts_.size() == num_marks_) {
    parts_.push_back(part);
    host_s_.push_back(0);
    if (device_.is_cuda())
      events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // with timing enabled
  }
  parts_[num_marks_] = part;
  host_s_[num_marks_] = monotonic_seconds();
  if (device_.is_cuda()) events_[num_marks_].record(*stream_);
  ++num_marks_;
}

void StepTimer::end() {
  if (!is_running_) return;
  // The last mark only ends the part before it.
  const bool is_other = parts_[num_marks_ - 1] == StepPart::kOther;
  mark(is_other ? Work::kOptimizer : Work::kTraining, /*waits=*/false);
  is_complete_ = is_running_;
  is_running_ = false;
}

observe::StepParts StepTimer::read() const {
  observe::StepParts parts;
  if (!is_complete_) return parts;
  for (size_t i = 0; i + 1 < num_marks_; ++i) {
    seconds_in(parts, parts_[i]) += device_.is_cuda() ? events_[i].elapsedTime(events_[i + 1]) / 1e3
                                                      : host_s_[i + 1] - host_s_[i];
  }
  return parts;
}

}  // namespace sftrun::train
