#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "sftrun/parallel/communicator.h"
#include "sftrun/train/micro_batch_schedule.h"
#include "sftrun/train/stragglers.h"

namespace sftrun::train {

/// Per-step values of a rank that are computed on the host.
struct HostNumbers {
  double num_terms = 0;  ///< terms of the objective in this rank's micro-batches
  double peak_memory_bytes = 0;
  double stop_exit_code = 0, save_due = 0;
  double gpu_utilization = -1;                        ///< percent; below 0: unknown
  double has_written_part = 0;                        ///< see CheckpointWriter
  double memory_used_bytes = 0, cpu_utilization = 0;  ///< see observe::TrainMetrics
  WorkSeconds work{};  ///< host seconds of this rank's own work since its last step
};

/// All values of one step of one rank.
struct RankNumbers {
  double grad_norm = 0;                    ///< of the reduced gradients
  std::vector<double> losses, aux_losses;  ///< of this rank's micro-batches
  std::vector<double> metrics;             ///< sums over this rank's micro-batches
  HostNumbers host;
};

/// Gathers the values of a step from all ranks and copies them to the host. On CUDA only `wait`
/// blocks, so the next step can be queued while the copy is pending. Call begin, gather, send,
/// wait, in this order, for each step. Not thread-safe.
class StepNumbers {
 public:
  explicit StepNumbers(at::Device device);

  /// Call before the first work of the step is queued: starts the step's timer.
  void begin();
  /// One small all-gather with everything that the ranks must agree on.
  /// @param grad_norm fp64 scalar on the device   @param sums with as many values on every rank
  void gather(parallel::Communicator& comm, const at::Tensor& grad_norm, const StepSums& sums,
              const HostNumbers& host);
  /// The gathered values on the device: [ranks, columns] fp64. Each row starts with the gradient
  /// norm and the losses.
  const at::Tensor& on_device() const { return gathered_; }
  /// Queues the copy to the host and stops the step's timer.
  void send();
  /// Waits for the copy.   @return the values of each rank
  std::vector<RankNumbers> wait();
  /// Device time from `begin` to `send`. On CUDA valid after `wait`.
  double seconds() const;

 private:
  at::Device device_;
  at::Tensor host_values_;  // [kHostValues] fp64, this rank's; pinned if there is a GPU
  at::Tensor arrived_;      // [ranks, columns] fp64; on the host, pinned likewise
  at::Tensor gathered_;     // the same values on the device
  int64_t num_losses_ = 0, num_aux_losses_ = 0, num_metrics_ = 0;
  std::optional<c10::Event> began_, ended_;  // none on a CPU
};

}  // namespace sftrun::train
