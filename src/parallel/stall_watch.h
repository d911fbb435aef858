#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "sftrun/parallel/communicator.h"

/// Finds the ranks that the others wait for.
namespace sftrun::parallel {

/// A thread that tells the other ranks, over a connection of its own to the store, whether this
/// rank waits for them. When this rank has waited for `stall_s`, it asks what the others do. The
/// lowest of the ranks that wait logs which ranks do not, and which send no heartbeat (stopped, or
/// their machine is gone); a rank that gets no answer from the store logs that the store's host
/// sends no heartbeat. It never ends a run: `parallel.timeout` does.
class StallWatch {
 public:
  /// Opens the connection. @throws what c10d throws when the store does not answer
  StallWatch(const Identity& identity, const ConnectOptions& options);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  /// Sets what this rank is doing: "step 17". Any thread.
  void set_activity(const std::string& activity);

  /// Marks this rank as waiting for the others during its lifetime.
  class Wait {
   public:
    /// @param watch may be null: no watch    @param what "all_reduce"
    Wait(StallWatch* watch, const char* what);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    StallWatch* watch_;
  };

 private:
  struct State;

  void run();
  void exchange(double waited, double& next_s);
  bool may_connect_again();
  bool ends_within(double seconds);
  std::vector<std::string> beats_of_all();
  void begin_wait(const char* what);
  void end_wait(bool all_came);
  double waited_s();
  std::string own_state();
  std::string describe_others();

  const Identity identity_;
  const double stall_s_, beat_s_, answer_s_;
  c10::intrusive_ptr<c10d::Store> store_;   // of the thread alone; null: its host gave no answer
  std::vector<std::string> earlier_beats_;  // of the thread alone: of each rank, when asked first
  std::mutex mutex_;                        // of what follows
  std::condition_variable ends_;
  bool is_ending_ = false;
  std::string activity_ = "starting";
  const char* waits_in_ = nullptr;
  bool all_came_ = true;  // to the last wait that has ended
  std::chrono::steady_clock::time_point wait_start_;
  int64_t beats_ = 0;
  std::thread thread_;  // last, because it uses the members above
};

}  // namespace sftrun::parallel
