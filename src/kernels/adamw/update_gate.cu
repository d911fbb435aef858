#include "adamw/update_gate.h"

#include "adamw/update_gate_launch.h"
#include "cuda/device.cuh"

namespace sftrun::kernels::cuda {
namespace {

/// One block. Checking the sums is enough: losses are fp32 sums and norms are roots, so sums of
/// finite values do not overflow fp64.
__global__ void __launch_bounds__(kThreads) decide_update(StepNumbers numbers, UpdateGate* gate) {
  double losses = 0, norms = 0;
  for (int64_t i = threadIdx.x; i < numbers.ranks * numbers.losses; i += kThreads)
    losses += numbers.values[i / numbers.losses * numbers.columns + 1 + i % numbers.losses];
  for (int64_t rank = threadIdx.x; rank < numbers.ranks; rank += kThreads)
    norms += numbers.values[rank * numbers.columns];
  losses = block_sum(losses);
  norms = block_sum(norms);
  if (threadIdx.x != 0) return;
  const bool is_finite = is_finite_number(losses / numbers.num_terms) && is_finite_number(norms);
  *gate = decided(*gate, numbers.values[0], is_finite, numbers.max_norm);
}

}  // namespace

void launch_decide_update(const StepNumbers& numbers, UpdateGate* gate, Stream stream) {
  launch(decide_update, 1, kThreads, stream, numbers, gate);
}

const Provided kLaunchers[] = {{"launch_decide_update", launch_decide_update}};

}  // namespace sftrun::kernels::cuda
