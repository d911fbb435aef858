#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace sftrun::kernels::cuda {

/// Products g^T x in fp32 with one wide side: the columns of the thin side belong to up to
/// kMaxGradParts matrices. With r counted from the first column of a part:
///   out[c * wide_step + r * rank_step] += scale * sum over tokens of wide[t, c] * thin[t, r]
/// If the wide side is rms_norm(x), `wide` is x and rstd and weight are the norm's.
inline constexpr int kMaxGradParts = 4;  ///< linears with one input
inline constexpr int kGradColumns = 64;  ///< wide columns of a block
/// Columns of the thin side that a block can have.
constexpr int max_grad_ranks(Type type) {
  return type == Type::kFloat32 ? 16 : 64;
}
struct AdapterGradPart {
  float* out;
  int64_t rank, wide_step, rank_step;
  float scale;
};
struct AdapterGrad {
  const void* wide;    ///< [tokens, wide_columns], row stride wide_stride in elements
  const void* thin;    ///< [tokens, rank], row stride thin_stride in elements
  const float* rstd;   ///< [tokens] of the norm; null: no norm
  const void* weight;  ///< [wide_columns] of the norm, plus `offset`
  float offset;
  int64_t wide_stride, wide_columns, thin_stride;
  int64_t rank;  ///< of all parts
  int parts;
  AdapterGradPart part[kMaxGradParts];
};
inline constexpr int kMaxAdapterGrads = 8;  ///< per launch
struct AdapterGrads {
  AdapterGrad products[kMaxAdapterGrads];
  int count;
  int64_t tokens;
  /// Tokens that a block sums up: a multiple of 64, or all. With more than one part of the tokens,
  /// the sizes of the two arrays are those of `work_of`, and `arrivals` holds zeros, which it holds
  /// again when the kernel ends.
  int64_t part_tokens;
  float* partial_sums;
  unsigned* arrivals;
};
struct AdapterGradWork {
  int64_t tiles;  ///< blocks for one part of the tokens
  int64_t sums;   ///< partial sums of all tiles and parts
};
AdapterGradWork work_of(Type type, const AdapterGrads& grads);
void launch_adapter_grads(Type type, const AdapterGrads& grads, Stream stream);

}  // namespace sftrun::kernels::cuda
