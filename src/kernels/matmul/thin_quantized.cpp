#include "thin_quantized.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "../brgemm.h"
#include "../parallel.h"

namespace sftrun::kernels {
namespace {

constexpr int64_t kMostRows = 64;  // from there on whole panels pay
constexpr int64_t kDepth = 1024;   // unpacked at a time
constexpr int64_t kGrain = 16;     // rows of w worth a thread

template <typename T>
void products_of_row(const Product& term, int64_t row, float* out) {
  const QuantizedMatrix& w = *term.w.quantized;
  const auto* x = static_cast<const T*>(term.x.const_data_ptr());
  const int64_t rows = term.x.size(0), stride = term.x.stride(0);
  std::array<T, kDepth> part;
  std::fill(out, out + rows, 0.0F);
  for (int64_t k = 0; k < w.columns; k += kDepth) {
    const int64_t depth = std::min(kDepth, w.columns - k);
    dequantize_part(w, row, 1, k, depth, part.data(), depth);
    row_kernels<T>().matmul.add_dot_rows(part.data(), x + k, stride, rows, depth, out);
  }
}

template <typename T>
at::Tensor product(const Product& term) {
  const int64_t rows = term.x.size(0), columns = term.w.quantized->rows;
  at::Tensor turned = at::empty({columns, rows}, at::kFloat);  // w x^T
  float* out = turned.data_ptr<float>();
  parallel_for(0, columns, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) products_of_row<T>(term, row, out + row * rows);
  });
  return turned.t().to(term.x.scalar_type()).contiguous();
}

/// x w, some of w's rows at a time: all of a head's would be large.
at::Tensor product_by_rows(const at::Tensor& x, const QuantizedMatrix& w) {
  constexpr int64_t kValues = 1 << 20;  // unpacked at once
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

bool thin_quantized_serves(const Product& term) {
  const at::ScalarType dtype = term.x.scalar_type();
  return term.w.quantized != nullptr && term.x.is_cpu() && term.x.size(0) < kMostRows &&
         term.x.stride(1) == 1 && (dtype == at::kFloat || dtype == at::kBFloat16);
}

at::Tensor thin_quantized_product(const Product& term) {
  if (!term.transposed) return product_by_rows(term.x, *term.w.quantized);
  return term.x.scalar_type() == at::kFloat ? product<float>(term) : product<uint16_t>(term);
}

}  // namespace sftrun::kernels
