#include "stop_progress.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace sftrun::launch {
namespace {

/// Of the time without progress. A worker that hangs uses less, for its heartbeats.
constexpr double kWorkingShare = 0.005;
constexpr uint64_t kWorkingBytes = uint64_t{1} << 16;

}  // namespace

double StopProgress::period_s() const {
  return std::min(1.0, grace_s_ / 4);
}

double StopProgress::last(const std::vector<std::unique_ptr<WorkerProcess>>& workers, double now) {
  for (const auto& worker : workers)
    if (worker->is_running()) last_ = std::max(last_, last_of(*worker, now));
  return last_;
}

double StopProgress::last_of(const WorkerProcess& worker, double now) {
  const ActivityState state = worker.activity().read();
  const bool has_worked_now = has_worked(worker);  // always asked, so that it counts from here
  const bool waits_for_ranks = !state.waits_in.empty() && state.waits_in != kDeviceWait;
  const bool saves =
      state.work == Work::kSaving && !waits_for_ranks && state.quiet_s < kQuietSave_s;
  if (waits_for_ranks ? !sees_all_ranks_ : has_worked_now || saves) return now;
  return now - state.quiet_s;
}

bool StopProgress::has_worked(const WorkerProcess& worker) {
  const ProcessUse use = worker.use();
  const auto [place, is_new] = used_.try_emplace(worker.rank());
  Used& before = place->second;
  const bool has =
      !is_new && (use.is_in_kernel || use.cpu_s >= before.cpu_s + kWorkingShare * grace_s_ ||
                  use.file_bytes >= before.file_bytes + kWorkingBytes);
  if (is_new || has) before = {use.cpu_s, use.file_bytes};
  return has;
}

}  // namespace sftrun::launch
