#pragma once

#include <atomic>
#include <memory>

/// Faults of NCCL that a test asks for (`Fault` of settings.h), and streams that hang.
namespace stand_in {

/// What a stream waits for that does not come; `is_over` when the communicator is aborted.
struct Hang {
  std::atomic<bool> is_over{false};
};
using HangPointer = std::shared_ptr<Hang>;

inline bool hangs(const HangPointer& hang) {
  return hang != nullptr && !hang->is_over;
}
/// As cudaStreamSynchronize waits. Not under the lock of the tables.
void wait_until_over(const HangPointer& hang);

enum class Happens { kNothing, kError, kStuck, kHostHangs, kDeviceHangs };
/// For each collective and message of this process, in order. Sleeps where the rank is late; does
/// not return where it is lost or stopped.
Happens next_call();
/// Before each launch of a kernel: sleeps where the rank is late with its next collective.
void before_launch();
/// Whether the fault has happened, on any rank.
bool has_fault_happened();

}  // namespace stand_in
