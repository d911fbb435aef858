#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

/// What a rank does now, in memory that other processes of the machine can read, also while the
/// rank hangs or is stopped.
namespace sftrun {

enum class Work : int32_t {
  kStarting,
  kLoading,
  kTokenizing,
  kTraining,  ///< between the parts of a step
  kDataLoader,
  kForward,
  kBackward,
  kOptimizer,
  kEvaluating,
  kSaving,
  kExporting,
  kMetrics,
  kGenerating,
};
constexpr size_t kNumWorks = 13;

/// "in the data loader", "writing a checkpoint": the end of "rank 3 has been …".
std::string_view describe_work(Work work);

/// `ActivityState::waits_in` of a rank that waits for its own device, not for other ranks.
constexpr std::string_view kDeviceWait = "work queued on its GPU";

/// A copy of what a rank does.
struct ActivityState {
  Work work = Work::kStarting;
  /// "all-reduce" of all ranks, "all-reduce of tp (ranks 2 and 3)"; "": it does not wait for others
  std::string waits_in;
  int64_t step = 0;        ///< optimizer step, from 1; 0: before the first
  double quiet_s = 0;      ///< since the rank last began or ended a work or a wait
  int64_t waits_done = 0;  ///< waits that ended without an error
  bool operator==(const ActivityState&) const = default;
};

/// One rank's record in shared memory. One thread writes it, with relaxed atomic stores; any thread
/// and process may read it.
class Activity {
 public:
  /// New memory. Without memory that can be shared, it can only be read in this process.
  Activity();
  /// The memory behind a descriptor of `descriptor()`, also one that another process inherited.
  /// Does not take ownership. nullopt if it is no such memory.
  static std::optional<Activity> from_descriptor(int fd);
  /// The memory behind the descriptor that SFTRUN_ACTIVITY_FD names, else new memory.
  static Activity of_this_process();
  ~Activity();
  Activity(Activity&& other) noexcept;
  Activity& operator=(Activity&&) = delete;

  int descriptor() const { return fd_; }  ///< -1: none

  void set_step(int64_t step);
  void set_work(Work work);
  Work work() const;
  /// Names some of the ranks for `begin_wait`: "tp (ranks 2 and 3)". The same name has the same
  /// number. Not for each wait: readers rely on names that do not change.
  /// @return from 1; 0 if there are more names than the record holds
  int name_group(std::string_view name);
  /// @param what the collective: "all_reduce"   @param group of `name_group`; 0: all ranks
  void begin_wait(std::string_view what, int group = 0);
  void end_wait(bool succeeded);

  /// @param changed called by the writing thread when it begins or ends a work or a wait. `waits`:
  /// for other ranks, or for the device. Empty: nothing is called
  void on_change(std::function<void(Work work, bool waits)> changed) {
    changed_ = std::move(changed);
  }

  ActivityState read() const;
  /// Seconds of each work so far, without the waits. Of the writing thread.
  std::array<double, kNumWorks> seconds_of_works();

  /// Lets `stack` ask the calling thread for its stack, with SIGUSR2. Until the end of the process.
  void answer_stack_requests();
  /// The functions in which the thread of `answer_stack_requests` is, the innermost first, one a
  /// line; "" if it gives no answer within a second: the process is stopped, or the thread is inside
  /// a system call that cannot be interrupted.
  /// @param process whose record this is
  std::string stack(int process) const;

 private:
  struct Record;
  Activity(Record* record, int fd) : record_(record), fd_(fd) {}
  void spend(int64_t now_ns);

  Record* record_ = nullptr;
  int fd_ = -1;
  std::function<void(Work, bool)> changed_;
};

/// Sets the work during its lifetime.
class WorkScope {
 public:
  /// @param activity may be null: nothing is recorded
  WorkScope(Activity* activity, Work work) : activity_(activity) {
    if (activity_ == nullptr) return;
    before_ = activity_->work();
    activity_->set_work(work);
  }
  ~WorkScope() {
    if (activity_ != nullptr) activity_->set_work(before_);
  }
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  Activity* activity_;
  Work before_ = Work::kStarting;
};

/// Marks the rank as waiting for other ranks during its lifetime.
class WaitScope {
 public:
  /// @param activity may be null   @param group as of `Activity::begin_wait`
  WaitScope(Activity* activity, std::string_view what, int group = 0);
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  Activity* activity_;
  int exceptions_;  ///< on their way when it began
};

}  // namespace sftrun
