#pragma once

#include <ATen/core/Tensor.h>

#include "sftrun/kernels/delta_chunks.h"

/// The gated delta rule (delta_net.h) over chunks of tokens (arXiv:2412.06464, section 3.3).
namespace sftrun::kernels {

struct RuleShape {
  int64_t num_key_heads = 0, num_value_heads = 0, key_dim = 0, value_dim = 0;
  int64_t values_per_key() const { return num_value_heads / num_key_heads; }
  int64_t keys_size() const { return num_key_heads * key_dim; }
};

struct RuleInputs {
  at::Tensor qkv;      ///< [N, kChunk, channels] fp32: q, k, v before normalisation; arbitrary at
                       ///< padding
  at::Tensor g, beta;  ///< [N, value_heads, kChunk] fp32: g <= 0; both 0 at padding
};

/// @param memory receives the state [value_heads, key_dim, value_dim] after the last chunk; null:
/// not computed   @return o [N, kChunk, value_heads * value_dim] in `dtype`
at::Tensor delta_rule_forward(const RuleInputs& in, const RuleShape& shape, const Chunks& chunks,
                              at::ScalarType dtype, at::Tensor* memory);

struct RuleGrads {
  at::Tensor qkv;   ///< shape of the input; 0 at padding
  at::Tensor g, b;  ///< shape of g; b is the logit of beta; arbitrary at padding
};
/// @param d_out [N, kChunk, value_heads * value_dim]; finite but arbitrary at padding
RuleGrads delta_rule_backward(const at::Tensor& d_out, const RuleInputs& in, const RuleShape& shape,
                              const Chunks& chunks);

/// rows = x * factor, factor = length / sqrt(sum x^2 + 1e-6) over the last dimension.
struct UnitRows {
  at::Tensor rows, factor;  ///< factor [..., 1]
};
UnitRows unit_rows(const at::Tensor& x, double length);

}  // namespace sftrun::kernels
