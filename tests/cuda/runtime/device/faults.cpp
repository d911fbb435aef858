#include "faults.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "report.h"
#include "settings.h"

namespace stand_in {
namespace {

std::atomic<bool>& is_late() {
  static std::atomic<bool> late{false};
  return late;
}

void tell_that_it_happens() {
  const int file = ::open(settings().fault.file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  require(file >= 0, "SFTRUN_STANDIN_NCCL_FAULT_FILE: ", settings().fault.file);
  ::close(file);
}

}  // namespace

void wait_until_over(const HangPointer& hang) {
  while (hangs(hang)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Happens next_call() {
  static std::atomic<int> calls{0};
  const int call = ++calls;
  const Fault& fault = settings().fault;
  if (fault.kind.empty() || fault.rank != settings().rank || fault.call != call)
    return Happens::kNothing;
  Event("nccl_fault").with("kind", fault.kind).with("call", call);
  const bool comes_in_time = fault.kind == "late";
  if (!comes_in_time) tell_that_it_happens();
  if (fault.kind == "late" || fault.kind == "too_late") {
    is_late() = true;
    return Happens::kNothing;
  }
  if (fault.kind == "lost") ::raise(SIGKILL);
  if (fault.kind == "stopped") {
    ::raise(SIGSTOP);
    return Happens::kNothing;
  }
  if (fault.kind == "error") return Happens::kError;
  if (fault.kind == "stuck") return Happens::kStuck;
  if (fault.kind == "hang") return Happens::kHostHangs;
  if (fault.kind == "gpu_hang") return Happens::kDeviceHangs;
  fail(text("SFTRUN_STANDIN_NCCL_FAULT: no kind `", fault.kind, "`"));
}

void before_launch() {
  if (settings().fault.kind.empty() || !is_late().exchange(false)) return;
  std::this_thread::sleep_for(std::chrono::duration<double>(settings().fault.seconds));
}

bool has_fault_happened() {
  const Fault& fault = settings().fault;
  return !fault.kind.empty() && ::access(fault.file.c_str(), F_OK) == 0;
}

}  // namespace stand_in
