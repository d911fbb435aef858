#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Packed documents cut into chunks of equal length, the last of each document padded: how gated
/// delta nets (delta_net.h) read a batch.
namespace sftrun::kernels {

/// Longer chunks mean more work within them, shorter ones more steps from one to the next.
inline constexpr int64_t kChunk = 64;

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

/// The arrays of `Chunks` on the host.
struct ChunkArrays {
  std::vector<int64_t> steps, tokens, previous, following, places;
  std::vector<float> real, has_following;
};
/// Depends on where documents begin alone: made once for a batch, whatever the number of layers.
/// @param cu_seqlens [n + 1] of documents with at least one token in all
ChunkArrays chunk_arrays(const std::vector<int32_t>& cu_seqlens);

}  // namespace sftrun::kernels
