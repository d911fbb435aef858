#pragma once

#include <cstdint>

#include "cuda/types.h"
#include "sftrun/kernels/cpu_table.h"

namespace sftrun::kernels::cuda {

/// Input of `decide_update_`.
struct StepNumbers {
  const double* values;  ///< [ranks, columns]: norm, losses, others
  int64_t ranks, columns, losses;
  double num_terms, max_norm;
};
void launch_decide_update(const StepNumbers& numbers, UpdateGate* gate, Stream stream);

}  // namespace sftrun::kernels::cuda
