#include "thin_product.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "../cuda/matrix_views.h"
#include "../formats/format_ops.h"
#include "../formats/thin_rows.h"
#include "../operands.h"
#include "../parallel.h"
#include "../row_kernels.h"
#include "amx_thin_product.h"
#include "block_product.h"
#include "formats/cuda_formats.h"
#include "tiled_matmul.h"

namespace sftrun::kernels {
namespace {

constexpr int64_t kFewRows = 64;  // fewer rows do not pay for packing whole panels
constexpr int64_t kDepth = 1024;  // dequantised at a time, if rows are not whole groups

const DotKernels& dots() {
  return cpu_kernels().dots;
}

template <typename T>
at::Tensor dense_product(const ThinTokens& tokens, const at::Tensor& w) {
  constexpr int64_t kGrain = 16 * 1024;  // least values of w of a thread
  constexpr int64_t kTogether = 4;       // rows
  const auto* from = static_cast<const T*>(w.const_data_ptr());
  const int64_t stride = w.stride(0), n = w.size(1), rows = w.size(0);
  const auto multiply = [&] {
    if constexpr (std::is_same_v<T, float>) {
      return dots().dense_rows_fp32;
    } else {
      return dots().dense_rows_bf16;
    }
  }();
  at::Tensor product = at::empty({tokens.count, rows}, at::kFloat);
  float* out = product.data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, kTogether * n));
  parallel_for(0, (rows + kTogether - 1) / kTogether, grain, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kTogether, last = std::min(rows, end * kTogether);
    multiply({from + first * stride, stride, last - first}, n, tokens.x, tokens.count, out + first,
             rows);
  });
  return product;
}

/// Some rows are dequantised at a time, once for all tokens.
at::Tensor product_of_rows(const ThinTokens& tokens, const QuantizedMatrix& w) {
  constexpr int64_t kTogether = 8;
  const int64_t n = w.columns;
  at::Tensor product = at::empty({tokens.count, w.rows}, at::kFloat);
  float* out = product.data_ptr<float>();
  parallel_for(0, (w.rows + kTogether - 1) / kTogether, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> values(static_cast<size_t>(kTogether * n));
    for (int64_t row = begin * kTogether; row < std::min(w.rows, end * kTogether);
         row += kTogether) {
      const int64_t count = std::min(kTogether, w.rows - row);
      dequantize_part(w, row, count, 0, n, values.data(), n);
      dots().dense_rows_fp32({values.data(), n, count}, n, tokens.x, tokens.count, out + row,
                             w.rows);
    }
  });
  return product;
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

/// In fp32, rounded once; undefined if tiles do not serve few rows.
at::Tensor product_of_tiles(const Product& term) {
  if (block_product_is_compiled(at::kFloat)) return {};
  const Product in_fp32 = {term.x.to(at::kFloat), term.w, term.transposed};
  if (!tiled_matmul_serves_few_rows(in_fp32)) return {};
  at::Tensor sum =
      at::empty({term.x.size(0), term.w.size(term.transposed ? 0 : 1)}, in_fp32.x.options());
  tiled_matmul_sum({in_fp32}, {}, {}, sum);
  return sum.to(term.x.scalar_type());
}

/// x w^T
at::Tensor product(const at::Tensor& x, const Matrix& w) {
  // More tokens than four would decode each row several times.
  constexpr int64_t kFour = 4;
  const bool in_registers = x.size(0) <= kFour || dots().max_dense_tokens < x.size(0);
  if (w.quantized != nullptr && in_registers && ops_of(*w.quantized).has_whole_groups(*w.quantized))
    return ops_of(*w.quantized).thin_product(x, *w.quantized);
  if (w.quantized == nullptr && amx_thin_product_serves(x, w.dense))
    return amx_thin_product(x, w.dense);
  const at::Tensor in_fp32 = x.to(at::kFloat).contiguous();
  const ThinTokens tokens(in_fp32);
  if (w.quantized != nullptr) {
    return in_registers ? product_of_parts(tokens, x, *w.quantized)
                        : product_of_rows(tokens, *w.quantized).to(x.scalar_type());
  }
  return w.dense.scalar_type() == at::kFloat
             ? dense_product<float>(tokens, w.dense)
             : dense_product<uint16_t>(tokens, w.dense).to(x.scalar_type());
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
  return term.transposed && x.size(0) <= dots().max_dense_tokens && term.w.dense.stride(1) == 1 &&
         term.w.dense.scalar_type() == dtype;
}

at::Tensor thin_product(const Product& term) {
  TORCH_CHECK(term.x.dim() == 2 && term.x.size(1) == term.w.size(term.transposed ? 1 : 0),
              "a product of ", term.x.sizes(), " and a matrix of ", term.w.size(0), " x ",
              term.w.size(1));
  if (term.w.quantized) require_quantized(*term.w.quantized, term.x.device());
  if (term.x.is_cuda()) return thin_product_on_cuda(term.x, *term.w.quantized);
  if (!term.transposed || dots().max_dense_tokens < term.x.size(0)) {
    if (at::Tensor tiled = product_of_tiles(term); tiled.defined()) return tiled;
  }
  return term.transposed ? product(term.x, term.w) : product_by_rows(term.x, *term.w.quantized);
}

}  // namespace sftrun::kernels
