#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sftrun/core/activity.h"
#include "sftrun/core/stall.h"
#include "sftrun/parallel/communicator.h"

/// Finds the ranks that the others wait for.
namespace sftrun::parallel {

/// A thread that tells the other ranks, over a connection of its own to the store, what this rank
/// does. When this rank has waited for them for `stall_s`, it asks what the others do. The lowest
/// of the ranks that wait logs which ranks do not, what these do and since when, and which send no
/// heartbeat (stopped, or their machine is gone). A rank that is named logs its stack. A rank that
/// gets no answer from the store logs that the store's host sends no heartbeat. It never ends a
/// run: `parallel.timeout` does.
class StallWatch {
 public:
  /// Opens the connection. @throws what c10d throws when the store does not answer
  /// @param activity of this rank; must outlive the watch
  StallWatch(const Identity& identity, const ConnectOptions& options, const Activity& activity);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

 private:
  struct Published;

  void run();
  void exchange(const ActivityState& own);
  void ask_others(const ActivityState& own);
  void report(const Stall& stall);
  void show_own_stack(const ActivityState& own);
  void report_silent_host(const ActivityState& own);
  bool may_connect_again(const ActivityState& own) const;
  bool ends_within(double seconds);
  std::vector<RankView> views(const ActivityState& own);

  const Identity identity_;
  const double stall_s_, beat_s_, answer_s_;
  const Activity& activity_;
  // Of the thread alone:
  c10::intrusive_ptr<c10d::Store> store_;  // null: its host gave no answer
  int64_t waits_done_when_lost_ = 0;       // when the host gave no answer
  std::vector<int64_t> earlier_beats_;     // of each rank, when it was asked first; empty: not yet
  StallReports reports_, silent_host_;
  int64_t beats_ = 0, looked_at_beat_ = 0;
  std::string answered_;  // the last request for this rank's stack

  std::mutex mutex_;  // of what follows
  std::condition_variable ends_;
  bool is_ending_ = false;
  std::thread thread_;  // last, because it uses the members above
};

}  // namespace sftrun::parallel
