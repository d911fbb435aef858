#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sftrun/kernels/ops.h"

/// Packed documents cut into chunks of equal length, the last chunk of each document padded: the
/// input layout of the gated delta net (delta_net.h).
namespace sftrun::kernels {

/// Longer chunks cost more work within a chunk; shorter ones need more recurrence steps.
inline constexpr int64_t kChunk = 64;

/// N chunks in the order in which the recurrence processes them: the first chunk of every document,
/// then every second chunk, and so on, longer documents first. So each step of the recurrence is a
/// contiguous range of chunks, and its documents are a prefix of those of the step before.
struct Chunks {
  std::vector<int64_t> steps;  ///< number of chunks of each step, never increasing
  at::Tensor tokens;  ///< [N, kChunk] int64: token index in the batch; padding: the last token
  at::Tensor real;    ///< [N, kChunk] fp32: 1 for tokens, 0 for padding
  at::Tensor previous, following;  ///< [N] int64: neighbour chunks in the document; 0 if none
  at::Tensor has_following;        ///< [N] fp32: 0 or 1
  at::Tensor places;               ///< [T] int64: position of each token among the N * kChunk

  int64_t count() const { return tokens.size(0); }
  /// x [T, …] -> [N, kChunk, …]
  at::Tensor cut(const at::Tensor& x) const;
  /// y [N, kChunk, …] -> [T, …]
  at::Tensor join(const at::Tensor& y) const;
};

/// The arrays of `Chunks` on the host.
struct ChunkArrays {
  std::vector<int64_t> steps, tokens, previous, following, places;
  std::vector<float> real, has_following;
};
/// Depends only on the document boundaries, so one per batch serves all layers.
/// @param cu_seqlens [n + 1], at least one token in total
ChunkArrays chunk_arrays(const std::vector<int32_t>& cu_seqlens);

/// `BatchMetadata::chunks`, or computed here if that is null, which synchronises on CUDA.
Chunks chunks_of(const BatchMetadata& batch, at::Device device);

}  // namespace sftrun::kernels
