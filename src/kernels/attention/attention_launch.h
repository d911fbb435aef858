#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace sftrun::kernels::cuda {

/// Causal attention within packed documents, without sinks; see `AttentionShape` in ops.h. Rows of
/// q and out have heads * depth channels, those of k and v kv_heads * depth; depth <=
/// kMaxAttentionDepth, tokens < 2^31. Documents may be empty. q, k and v have row strides.
struct AttentionProblem {
  const void* q;
  const void* k;
  const void* v;
  const int32_t* cu_seqlens;  ///< [documents + 1]
  int64_t tokens, documents, heads, kv_heads, depth;
  int64_t q_stride, k_stride, v_stride;  ///< row strides in elements
  int64_t window;                        ///< keys that a query sees, its own included; 0: unlimited
  float scale, softcap;
  /// [tokens]: exclusive end of the keys that each query sees, ascending, at most the end of its
  /// document; null: the row after the query.
  const int32_t* key_ends = nullptr;
};
inline constexpr int64_t kMaxAttentionDepth = 512;
inline constexpr int64_t kMaxDepthBothWays = 256;  ///< with key_ends
/// @param lse [heads, tokens]: log-sum-exp of each query's scores
void launch_attention_forward(Type type, const AttentionProblem& problem, void* out, float* lse,
                              Stream stream);
struct AttentionGradient {
  const void* d_out;
  const void* out;
  const float* lse;
  float* delta;        ///< [heads, tokens] workspace
  int32_t* first_key;  ///< [tokens] workspace
  void* dq;
  void* dk;
  void* dv;
};
/// Without atomics: the order of summation depends only on the shapes.
void launch_attention_backward(Type type, const AttentionProblem& problem,
                               const AttentionGradient& gradient, Stream stream);

}  // namespace sftrun::kernels::cuda
