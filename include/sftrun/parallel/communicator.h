#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

/// The processes of a run and what they say to each other: c10d's collectives (Gloo on CPU, NCCL on
/// GPUs) and its store.
namespace sftrun::parallel {

struct Identity {
  int rank = 0, world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  bool is_one_machine = true;  ///< all ranks run here
};

struct ConnectOptions {
  double timeout_s = 1800;    ///< for the ranks to come, and of every collective
  double unreachable_s = 15;  ///< rank 0's address may be without an answer for so long
  double report_s = 30;       ///< ranks that are missing for so long are named in the log
  double stall_s = 40;  ///< a wait of so long for ranks that do not move is told, and who they are
  double beat_s = 5;    ///< between two signs of life of a rank
  std::function<bool()> stop_requested;  ///< asked while the ranks are waited for; may be empty
};

/// The ranks were no longer waited for because `stop_requested` said so.
struct StoppedWaiting : std::exception {
  const char* what() const noexcept override { return "stopped before the ranks met"; }
};

struct CollectiveCounts {
  int64_t all_reduce = 0, all_gather = 0;
};

/// Not thread-safe; one per process (or per thread, in tests).
class Communicator {
 public:
  /// One process: collectives are the identity and need no network.
  Communicator();
  /// Meets the others. @param backend "gloo" or "nccl" @throws CommError naming the address, or
  /// the ranks that did not come in time; StoppedWaiting
  static Communicator connect(const Identity& identity, const std::string& backend,
                              at::Device device, const ConnectOptions& options);
  ~Communicator();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;

  int rank() const;
  int world_size() const;
  std::string backend() const;  ///< "none", "gloo", "nccl"

  /// Starts summing `tensor` over all ranks in place; every rank ends with the same bits. The
  /// tensor must live until `wait_all`.
  void all_reduce_async(const at::Tensor& tensor);
  void wait_all();
  /// values [n] of each rank, in order of rank: [world_size][n]. n must be the same everywhere.
  std::vector<std::vector<double>> all_gather(const std::vector<double>& values);
  /// The same of a tensor [n], where it lies: [world_size, n]. With NCCL the host does not wait.
  at::Tensor all_gather_tensor(const at::Tensor& values);
  /// Waits until all ranks have come here, on the store and not in a collective: whoever comes
  /// first may wait for hours. @throws CommError when one has abandoned the run
  void barrier(const std::string& name);
  /// The last thing of a run: waits as `barrier` does. The rank that hosts the store leaves last,
  /// for the others may still be asking it whether all have come.
  void leave();
  /// Tells the ranks that wait in `barrier` that this one will not come, and why.
  void abandon(const std::string& why) noexcept;
  /// Rank 0's text, to all.
  std::string broadcast(const std::string& name, const std::string& text);
  /// What this rank does from now on ("step 17"), for those who wait for it. Any thread.
  void set_activity(const std::string& activity);
  const CollectiveCounts& counts() const;

 private:
  struct Impl;
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sftrun::parallel
