#include "thin_product.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "../brgemm.h"
#include "../cuda/matrix_views.h"
#include "../formats/format_ops.h"
#include "../formats/thin_rows.h"
#include "../operands.h"
#include "../parallel.h"
#include "sftrun/kernels/cuda_registry.h"

namespace sftrun::kernels {
namespace {

constexpr int64_t kFewRows = 64;      // fewer rows do not pay for packing whole panels
constexpr int64_t kFewDenseRows = 4;  // up to this many rows dot products are faster for a dense w
constexpr int64_t kDepth = 1024;      // dequantised at a time, if rows are not whole groups

const DotKernels& dots() {
  return cpu_kernels().dots;
}

template <typename T>
at::Tensor dense_product(const ThinTokens& tokens, const at::Tensor& x, const at::Tensor& w) {
  const auto* from = static_cast<const T*>(w.const_data_ptr());
  const int64_t stride = w.stride(0), n = w.size(1);
  const auto dot = [&] {
    if constexpr (std::is_same_v<T, float>) {
      return dots().dot_fp32;
    } else {
      return dots().dot_bf16;
    }
  }();
  return each_row(x, w.size(0), [&] {
    return
        [&](int64_t row, float* out) { dot(from + row * stride, n, tokens.x, tokens.count, out); };
  });
}

/// Any shape: rows are dequantised in parts that stay in the L1 cache.
at::Tensor product_of_parts(const ThinTokens& tokens, const at::Tensor& x,
                            const QuantizedMatrix& w) {
  return each_row(x, w.rows, [&] {
    return [&, part = std::vector<float>(kDepth)](int64_t row, float* out) mutable {
      std::fill(out, out + tokens.count, 0.0F);
      for (int64_t k = 0; k < w.columns; k += kDepth) {
        const int64_t depth = std::min(kDepth, w.columns - k);
        dequantize_part(w, row, 1, k, depth, part.data(), depth);
        dots().add_dots(part.data(), depth, w.columns, tokens.x + k, tokens.count, out);
      }
    };
  });
}

/// x w^T
at::Tensor product(const at::Tensor& x, const Matrix& w) {
  if (w.quantized != nullptr && ops_of(*w.quantized).has_whole_groups(*w.quantized))
    return ops_of(*w.quantized).thin_product(x, *w.quantized);
  const at::Tensor in_fp32 = x.to(at::kFloat).contiguous();
  const ThinTokens tokens(in_fp32);
  if (w.quantized != nullptr) return product_of_parts(tokens, x, *w.quantized);
  return w.dense.scalar_type() == at::kFloat ? dense_product<float>(tokens, x, w.dense)
                                             : dense_product<uint16_t>(tokens, x, w.dense);
}

/// x w, with some rows of w dequantised at a time, which limits memory.
at::Tensor product_by_rows(const at::Tensor& x, const QuantizedMatrix& w) {
  constexpr int64_t kValues = 1 << 20;  // values dequantised at once
  const int64_t step = std::max<int64_t>(1, kValues / w.columns);
  at::Tensor out = at::zeros({x.size(0), w.columns}, x.options().dtype(at::kFloat));
  for (int64_t first = 0; first < w.rows; first += step) {
    const int64_t count = std::min(step, w.rows - first);
    const at::Tensor part = dequantize_range(w, first, count, x.scalar_type());
    out.addmm_(x.narrow(1, first, count).to(at::kFloat), part.to(at::kFloat));
  }
  return out.to(x.scalar_type());
}

}  // namespace

bool thin_product_serves(const Product& term) {
  const at::Tensor& x = term.x;
  const bool is_quantized = term.w.quantized != nullptr;
  if (x.is_cuda())
    return is_quantized && term.transposed && cuda::thin_product_serves(x, *term.w.quantized);
  const at::ScalarType dtype = x.scalar_type();
  if (x.stride(1) != 1 || (dtype != at::kFloat && dtype != at::kBFloat16)) return false;
  if (is_quantized) return x.size(0) < kFewRows;
  return term.transposed && x.size(0) <= kFewDenseRows && term.w.dense.stride(1) == 1 &&
         term.w.dense.scalar_type() == dtype;
}

at::Tensor thin_product(const Product& term) {
  TORCH_CHECK(term.x.dim() == 2 && term.x.size(1) == term.w.size(term.transposed ? 1 : 0),
              "a product of ", term.x.sizes(), " and a matrix of ", term.w.size(0), " x ",
              term.w.size(1));
  if (term.w.quantized) require_quantized(*term.w.quantized, term.x.device());
  if (term.x.is_cuda()) {
    const QuantizedMatrix& w = *term.w.quantized;
    return cuda_kernels().thin_product(term.x, w, cuda::four_bit_tables(w));
  }
  if (!term.transposed) return product_by_rows(term.x, *term.w.quantized);
  return product(term.x, term.w);
}

}  // namespace sftrun::kernels
