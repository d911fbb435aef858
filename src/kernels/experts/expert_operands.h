#pragma once

#include <c10/util/Exception.h>

#include "operands.h"

/// Checks and addresses of operands of mixtures of experts.
namespace sftrun::kernels {

inline void require_shape(const at::Tensor& x, at::IntArrayRef sizes) {
  TORCH_CHECK(x.sizes() == sizes, "an operand of shape ", x.sizes(), " in place of ", sizes);
}

inline void require_weights(const at::Tensor& weights, const at::Tensor& like,
                            at::IntArrayRef sizes) {
  require_operand(weights, like, at::kFloat);
  require_shape(weights, sizes);
}

inline void require_token_rows(const at::Tensor& rows, const at::Tensor& x) {
  TORCH_CHECK(rows.dim() == 2, "rows of shape ", rows.sizes(), " in place of [tokens, top_k]");
  require_operand(rows, x, at::kInt);
}

inline const int32_t* indices(const at::Tensor& x) {
  return x.const_data_ptr<int32_t>();
}

/// Null if undefined.
inline const float* floats(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}

inline const void* memory(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr() : nullptr;
}

}  // namespace sftrun::kernels
