#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "sftrun/parallel/comm_verdict.h"

namespace c10 {
struct Event;
}

namespace sftrun::parallel {

/// Records the calls of a group whose collectives return before they are done, as NCCL's do. Events
/// on the stream of the passes mark where the device is: one before each call, one after the wait
/// for it. The host waits for nothing.
class CallTrace {
 public:
  explicit CallTrace(c10::Device device) : device_(device) {}
  CallTrace(const CallTrace&) = delete;
  CallTrace& operator=(const CallTrace&) = delete;

  // By the thread that uses the group:
  /// @param what a literal   @return the number of the call
  int64_t begin(const char* what);
  void returned(int64_t call);
  void waited(int64_t call);

  /// By any thread.
  CallState read() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Marker = std::shared_ptr<c10::Event>;
  struct Call {
    const char* what = "";
    Marker before, after;
    Clock::time_point since;  // only while `is_timed`
    bool is_timed = true;     // the host is in the call, or its stream waits for the result
  };
  Marker mark();
  void forget_done();
  Call& at(int64_t call) { return calls_[static_cast<size_t>(call - forgotten_ - 1)]; }

  const c10::Device device_;
  std::vector<Marker> free_;  // of the thread that uses the group
  mutable std::mutex mutex_;  // of what follows
  std::deque<Call> calls_;    // after the first `forgotten_`
  int64_t forgotten_ = 0;     // which are done
  const char* last_ = "";
  bool is_inside_ = false;
};

}  // namespace sftrun::parallel
