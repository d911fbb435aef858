#include "call_trace.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace sftrun::parallel {

/// Nothing of CUDA is called under the lock: with a device that hangs, such a call may not return,
/// and the reading thread must not wait for it.
CallTrace::Marker CallTrace::mark() {
  Marker marker;
  if (free_.empty()) {
    marker = std::make_shared<c10::Event>(device_.type());
  } else {
    marker = std::move(free_.back());
    free_.pop_back();
  }
  marker->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return marker;
}

void CallTrace::forget_done() {
  for (;;) {
    Marker after;
    {
      const std::lock_guard lock(mutex_);
      if (calls_.empty() || !calls_.front().after) return;
      after = calls_.front().after;
    }
    if (!after->query()) return;
    const std::lock_guard lock(mutex_);
    // A marker that the other thread still has is left to it.
    if (calls_.front().before.use_count() == 1) free_.push_back(std::move(calls_.front().before));
    if (after.use_count() == 2) free_.push_back(std::move(after));
    calls_.pop_front();
    ++forgotten_;
  }
}

int64_t CallTrace::begin(const char* what) {
  forget_done();
  Call call{.what = what, .before = mark(), .after = nullptr, .since = Clock::now()};
  const std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
  last_ = what;
  is_inside_ = true;
  return forgotten_ + static_cast<int64_t>(calls_.size());
}

void CallTrace::returned(int64_t call) {
  const std::lock_guard lock(mutex_);
  at(call).is_timed = false;
  is_inside_ = false;
}

void CallTrace::waited(int64_t call) {
  Marker after = mark();
  const std::lock_guard lock(mutex_);
  if (call <= forgotten_) return;  // a second wait, of another stream
  at(call).after = std::move(after);
  at(call).since = Clock::now();
  at(call).is_timed = true;
}

CallState CallTrace::read() const {
  std::deque<Call> calls;
  CallState state;
  {
    const std::lock_guard lock(mutex_);
    calls = calls_;
    state.done = forgotten_;
    state.last = last_;
    state.is_inside = is_inside_;
  }
  state.called = state.done + static_cast<int64_t>(calls.size());
  for (const Call& call : calls) {
    if (call.after && call.after->query()) {
      ++state.done;
      continue;
    }
    state.open = call.what;
    state.is_reached = call.before->query();
    state.is_waited = call.after != nullptr;
    if (call.is_timed)
      state.open_s = std::chrono::duration<double>(Clock::now() - call.since).count();
    break;
  }
  return state;
}

}  // namespace sftrun::parallel
