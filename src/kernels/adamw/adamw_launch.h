#pragma once

#include <cstdint>

#include "cuda/types.h"
#include "sftrun/kernels/cpu_table.h"

namespace sftrun::kernels::cuda {

/// `compute` (of dtype `type`) may be null: then only the fp32 master is updated.
/// @param gate on the device; null: none
void launch_adamw(Type type, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
                  void* compute, int64_t n, const AdamWParams& params, Stream stream,
                  const UpdateGate* gate = nullptr);

/// Consecutive blocks of moments, and the position of their values in the flat buffers.
struct StateBlocks {
  StateBlock first;
  const int64_t* begin;
  const int16_t* numel;
  int64_t count;
};
/// `param`, `grad` and `compute` are flat buffers.
void launch_adamw_8bit(Type type, float* param, const float* grad, const StateBlocks& blocks,
                       void* compute, const StateMap& exp_avg_map, const StateMap& exp_avg_sq_map,
                       const AdamW8bitParams& params, Stream stream,
                       const UpdateGate* gate = nullptr);

/// Elements summed per block; there are ceil(n / kSumChunk) partial sums in fp64.
inline constexpr int64_t kSumChunk = 65536;
/// total [1] fp64 = sum of x^2, in an order that depends only on n.
void launch_sum_of_squares(const float* x, int64_t n, double* partial, double* total,
                           Stream stream);

}  // namespace sftrun::kernels::cuda
