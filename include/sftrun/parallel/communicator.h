#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sftrun/core/activity.h"
#include "sftrun/parallel/group.h"

/// Communication between the ranks of a run: c10d's collectives (Gloo on CPU, NCCL on GPUs) and its
/// key-value store.
namespace sftrun::parallel {

struct Identity {
  int rank = 0, world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  bool is_one_machine = true;  ///< all ranks run on this machine
};

struct ConnectOptions {
  double timeout_s = 1800;       ///< to connect all ranks, and of every collective
  double unreachable_s = 12;     ///< how long rank 0's address may not answer
  double first_answer_s = 30;    ///< how long the listener may take to answer like a store
  double report_s = 30;          ///< missing ranks are logged after this time
  double stall_s = 30;           ///< after this time waiting ranks log which ranks make no progress
  bool reports_stalls = true;    ///< false: the launcher, which sees every rank, reports them
  Activity* activity = nullptr;  ///< of this rank, must outlive the communicator; null: its own
  double beat_s = 5;             ///< time between the heartbeats of a rank
  double answer_s = 10;  ///< the store's host counts as silent after this time without an answer
  std::function<bool()> stop_requested;  ///< called while waiting for the ranks; may be empty
  /// Called by another thread with the error of a collective of NCCL that this rank's thread has not
  /// found for long, because it hangs: reports it and ends the process. May be empty.
  std::function<void(std::exception_ptr)> end_process;
};

/// Thrown when `stop_requested` returned true before all ranks had joined.
struct StoppedWaiting : std::exception {
  const char* what() const noexcept override { return "stopped before all ranks were connected"; }
};

struct GroupOptions {
  std::string axes = {};  ///< of the mesh, for reports and errors: "tp"; "": none is named
  /// False: all ranks of the run get `world()`. True: calls of the group are not ordered with those
  /// of others that have the same ranks.
  bool is_own = false;
};

/// For a process whose ranks are threads, before its first communicator. LibTorch's flight recorder
/// is one for the process and takes in process groups without a lock, so threads would race in it.
void disable_flight_recorder();

/// Not thread-safe; one per process, or per thread (see `disable_flight_recorder`).
class Communicator {
 public:
  /// A single process: collectives return their input; no network is used.
  Communicator();
  /// Joins the process group.
  /// @param backend "gloo" or "nccl"
  /// @throws CommError naming the address that does not answer, or the ranks that did not join in
  /// time; StoppedWaiting
  static Communicator connect(const Identity& identity, const std::string& backend,
                              at::Device device, const ConnectOptions& options);
  ~Communicator();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;

  int rank() const;
  int world_size() const;
  std::string backend() const;  ///< "none", "gloo", "nccl"

  /// All ranks of the run.
  Group& world();
  /// A group of some ranks. Every rank of the run must call it, with the same `ranks` and in the
  /// same order; a rank that is not among them gets a group of its own.
  /// @param ranks of the run, ascending   @param name of the group, for errors
  Group make_group(const std::vector<int>& ranks, const std::string& name,
                   const GroupOptions& options = {});

  /// @param values [n] of this rank, with the same n on every rank    @return [world_size][n], by
  /// rank
  std::vector<std::vector<double>> all_gather(const std::vector<double>& values);
  /// The same for a tensor [n] on its device: [world_size, n]. With NCCL the host does not wait.
  at::Tensor all_gather_tensor(const at::Tensor& values);
  /// The texts of all ranks, by rank.
  std::vector<std::string> all_gather_texts(const std::string& text);
  /// NCCL's collectives return before they are done. For places where the host has waited for its
  /// GPU: what it reads there is not valid if a collective has failed.
  /// @throws CommError, or DeviceError where this rank is the cause; both name the cause
  void throw_if_failed() const;
  /// Waits until all ranks have called it. It polls the store instead of using a collective, so
  /// that a rank may wait for hours. @throws CommError when a rank has called `abandon`
  void barrier(const std::string& name);
  /// Waits for the next `call` of a rank, which has as many as this one waits for. Polls the store as
  /// `barrier` does, and counts as rest, not as waiting for a rank that makes no progress.
  /// @throws CommError when a rank has called `abandon`, or the store is gone
  void await_call(int rank);
  void call();
  /// Ends the communication of a run; waits as `barrier` does. The rank that hosts the store
  /// returns last, because the other ranks may still be polling it.
  void leave();
  /// Makes the ranks that wait in `barrier` fail with `why`, because this rank will not arrive.
  void abandon(const std::string& why) noexcept;
  /// @return `text` of rank 0, on every rank
  /// @param name key in the store; a new one for each call
  std::string broadcast(const std::string& name, const std::string& text);
  /// Adds to a number that all ranks share, 0 at first.   @return the number after it
  int64_t add(const std::string& name, int64_t amount);
  /// What this rank does: waits for other ranks are recorded by the communicator and its groups.
  Activity& activity();
  const CollectiveCounts& counts() const;  ///< over all groups
  void set_counts(const CollectiveCounts& counts);

 private:
  struct Impl;
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sftrun::parallel
