#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "call_trace.h"
#include "sftrun/parallel/comm_verdict.h"
#include "sftrun/parallel/communicator.h"

namespace sftrun::parallel {

/// Finds errors and time-outs of NCCL. Its collectives return before they are done, so an error is
/// known to NCCL alone, and a lost rank leaves the others waiting for their GPUs. A thread asks
/// LibTorch's process groups for errors, looks which collective has been open for too long, and
/// reads from the store whether another rank has failed. Then all ranks tell each other over the
/// store what they have called, decide in the same way which rank is the cause, and abort their
/// communicators. That ends the waits for the GPU; the thread of the rank finds the error at its
/// next collective, or where it has waited for its GPU. If it does not come to that, the process is
/// ended.
class NcclWatch {
 public:
  struct Options {
    Identity identity;
    std::string where;     ///< for errors: "rank 1 of 4, nccl"
    double timeout_s = 0;  ///< of a collective
    double answer_s = 10;  ///< of the store
    double poll_s = 0.5;
    double settle_s = 3;   ///< how long other ranks may take to say what they have called
    double abort_s = 10;   ///< how long NCCL's abort may take
    double ending_s = 20;  ///< then the rank's thread is not expected to find the error any more
    std::function<void(std::exception_ptr)> end_process;  ///< does not return; may be empty
  };
  struct Watched {
    std::string key, name;  ///< as in `GroupCalls`
    std::vector<int> ranks;
    c10::intrusive_ptr<c10d::Backend> backend;
    std::shared_ptr<CallTrace> calls;
  };

  /// Opens a connection to the store. @throws what c10d throws when the store does not answer
  explicit NcclWatch(Options options);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  void add(Watched group);
  /// No failure of other ranks is looked for any more: this rank leaves, or has failed.
  void stop();
  bool has_failed() const { return has_failed_.load(); }
  /// Cheap.   @throws the failure, if there is one
  void check();
  /// For a collective of this rank that threw. Waits until the ranks have decided on the cause.
  /// @throws the failure
  [[noreturn]] void fail(const std::string& group, const char* what, const std::string& error);

 private:
  struct Failed {
    std::string group, what, error;
    bool is_remote = false;
  };

  void run();
  bool look();
  void conclude(const std::optional<Failed>& own);
  std::optional<Failed> own_failure();
  std::vector<Watched> watched() const;
  RankCalls own_calls(const std::optional<Failed>& own);
  std::vector<RankCalls> all_calls(const RankCalls& own);
  void set_failure(std::exception_ptr failure);
  std::exception_ptr describe(const std::vector<RankCalls>& ranks) const;
  void abort_all();
  bool ends_within(double seconds);

  const Options options_;
  c10::intrusive_ptr<c10d::Store> store_;  // of the thread; null: its host gave no answer
  mutable std::mutex mutex_;               // of what follows
  std::condition_variable changed_;
  std::vector<Watched> groups_;
  std::optional<Failed> thrown_;  // by a collective of this rank
  std::exception_ptr failure_;
  bool is_ending_ = false, is_taken_ = false;
  std::atomic<bool> has_failed_{false};
  std::thread thread_;  // last, because it uses the members above
};

}  // namespace sftrun::parallel
