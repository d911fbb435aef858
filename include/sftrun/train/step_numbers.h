#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "sftrun/parallel/communicator.h"

namespace sftrun::train {

/// What a rank tells the others of a step beside what its device computes.
struct HostNumbers {
  double label_tokens = 0, peak_memory_bytes = 0;
  double stop_exit_code = 0, save_due = 0;
  double gpu_utilization = -1;  ///< percent; below 0: not known
};

/// A step's numbers of one rank.
struct RankNumbers {
  double grad_norm = 0;                    ///< of the reduced gradients
  std::vector<double> losses, aux_losses;  ///< of its micro-batches
  HostNumbers host;
};

/// The numbers of one step, of all ranks, on their way from the device to the host. On CUDA nothing
/// but `wait` waits, so a step may be queued behind the one whose numbers are on their way. In
/// order: begin, gather, send, wait; and again. Not thread-safe.
class StepNumbers {
 public:
  explicit StepNumbers(at::Device device);

  /// Before the step's first work is queued: its time begins here.
  void begin();
  /// One small all-gather, which carries all that ranks must agree on.
  /// @param grad_norm, losses, aux_losses scalars in fp64 on the device; as many on every rank
  void gather(parallel::Communicator& comm, const at::Tensor& grad_norm,
              const std::vector<at::Tensor>& losses, const std::vector<at::Tensor>& aux_losses,
              const HostNumbers& host);
  /// What was gathered, on the device: [ranks, columns] fp64, of each its norm, its losses, and
  /// more.
  const at::Tensor& on_device() const { return gathered_; }
  /// Starts the copy to the host, behind all that was queued; the step's time ends here.
  void send();
  /// Until they have arrived.   @return of each rank
  std::vector<RankNumbers> wait();
  /// From `begin` to `send`, as the device came past them. Of CUDA, after `wait`.
  double seconds() const;

 private:
  at::Device device_;
  at::Tensor host_values_;  // [4] fp64 of this rank; pinned where there is a GPU, as is:
  at::Tensor arrived_;      // [ranks, columns] fp64
  at::Tensor gathered_;     // the same on the device
  int64_t num_losses_ = 0, num_aux_losses_ = 0;
  std::optional<c10::Event> began_, ended_;  // none on a CPU
};

}  // namespace sftrun::train
