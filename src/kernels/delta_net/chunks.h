#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "parallel.h"
#include "sftrun/kernels/ops.h"

/// Packed documents cut into chunks of equal length, the last of each document padded.
namespace sftrun::kernels {

/// Longer chunks mean more work within them, shorter ones more steps from one to the next.
constexpr int64_t kChunk = 64;

/// N chunks in the order in which a recurrence over chunks reads them: the first chunk of every
/// document, then all second ones, longer documents before shorter ones. So each step of the
/// recurrence is a range of chunks, and its documents are the first of those of the step before.
struct Chunks {
  std::vector<int64_t> steps;      ///< chunks of each step, never more than of the one before
  at::Tensor tokens;               ///< [N, kChunk] int64: the batch's token; padding: the last one
  at::Tensor real;                 ///< [N, kChunk] fp32: 1; padding: 0
  at::Tensor previous, following;  ///< [N] int64: neighbours in the document; 0 where there is none
  at::Tensor has_following;        ///< [N] fp32: 0 or 1
  at::Tensor places;               ///< [T] int64: where each token is among the N * kChunk

  int64_t count() const { return tokens.size(0); }
  /// x [T, …] -> [N, kChunk, …]
  at::Tensor cut(const at::Tensor& x) const;
  /// y [N, kChunk, …] -> [T, …]
  at::Tensor join(const at::Tensor& y) const;
};
Chunks chunks_of(const BatchContext& batch, at::Device device);

/// Calls body(first, count) for parts of [0, total): parts of `cpu_part`, spread over the threads,
/// so that what a part needs stays in the cache and does not depend on their number; parts of
/// `cuda_part`, one after the other, which bound memory.
template <typename Body>
void for_parts(at::Device device, int64_t total, int64_t cpu_part, int64_t cuda_part,
               const Body& body) {
  if (device.is_cpu()) {
    parallel_for(0, (total + cpu_part - 1) / cpu_part, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part)
        body(part * cpu_part, std::min(cpu_part, total - part * cpu_part));
    });
    return;
  }
  for (int64_t first = 0; first < total; first += cuda_part)
    body(first, std::min(cuda_part, total - first));
}

}  // namespace sftrun::kernels
