#include "thin_quantized.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "../brgemm.h"
#include "../cuda/matrix_views.h"
#include "../parallel.h"
#include "sftrun/kernels/cuda_registry.h"

namespace sftrun::kernels {
namespace {

constexpr int64_t kFewRows = 64;  // below which whole panels do not pay
constexpr int64_t kDepth = 1024;  // unpacked at a time
constexpr int64_t kGrain = 16;    // rows of w worth a thread

/// Whether rows consist of what is unpacked at once, and so are multiplied without being written.
bool is_unpacked_at_once(const QuantizedMatrix& w) {
  constexpr int64_t kAtOnce = 32;
  return w.columns % kAtOnce == 0 && (!is_4bit(w.format) || w.block_size % kAtOnce == 0);
}

/// What rows of w are multiplied with: fp32 [tokens, K].
at::Tensor tokens_of(const at::Tensor& x, const QuantizedMatrix& w) {
  const at::Tensor tokens = x.to(at::kFloat).contiguous();
  if (!is_4bit(w.format) || !is_unpacked_at_once(w)) return tokens;
  at::Tensor split = at::empty_like(tokens);
  cpu_kernels().dots.split_pairs(tokens.const_data_ptr<float>(), tokens.numel(),
                                 split.data_ptr<float>());
  return split;
}

/// Rows of w times tokens, of each kind of matrix.
class RowDots {
 public:
  /// @param tokens of `tokens_of`
  RowDots(const QuantizedMatrix& w, const at::Tensor& tokens)
      : w_(w),
        x_(tokens.const_data_ptr<float>()),
        tokens_(tokens.size(0)),
        at_once_(is_unpacked_at_once(w)) {
    if (at_once_ && is_4bit(w.format))
      floats_.resize(static_cast<size_t>(w.columns / w.block_size + 2));
    if (!at_once_) floats_.resize(kDepth);
  }

  /// @param out [tokens]
  void operator()(int64_t row, float* out) {
    if (!at_once_)
      of_parts(row, out);
    else if (w_.format == QuantFormat::kGgml)
      of_ggml(row, out);
    else if (is_8bit(w_.format))
      of_8bit(row, out);
    else
      of_4bit(row, out);
  }

 private:
  static const DotKernels& dots() { return cpu_kernels().dots; }
  const uint8_t* packed() const { return w_.packed.const_data_ptr<uint8_t>(); }

  void of_parts(int64_t row, float* out) {
    std::fill(out, out + tokens_, 0.0F);
    for (int64_t k = 0; k < w_.columns; k += kDepth) {
      const int64_t depth = std::min(kDepth, w_.columns - k);
      dequantize_part(w_, row, 1, k, depth, floats_.data(), depth);
      dots().add_dots(floats_.data(), depth, w_.columns, x_ + k, tokens_, out);
    }
  }

  void of_ggml(int64_t row, float* out) const {
    const int64_t row_bytes = w_.packed.numel() / w_.rows;
    dots().dot_ggml(static_cast<uint32_t>(w_.ggml_type), packed() + row * row_bytes, w_.columns, x_,
                    tokens_, out);
  }

  void of_8bit(int64_t row, float* out) const {
    const float factor = w_.absmax.defined() ? w_.absmax.const_data_ptr<float>()[row] : 1.0F;
    const auto form = w_.format == QuantFormat::kFp8 ? EightBits::kE4m3 : EightBits::kInt8;
    dots().dot_8bit({form, packed() + row * w_.columns, factor}, w_.columns, x_, tokens_, out);
  }

  void of_4bit(int64_t row, float* out) {
    const int64_t first = row * w_.columns, block = first / w_.block_size,
                  last = (first + w_.columns - 1) / w_.block_size;
    w_.block_factors(block, {floats_.data(), static_cast<size_t>(last - block + 1)});
    dots().dot_4bit({packed() + first / 2, first % w_.block_size, w_.block_size,
                     quant_table(w_.format).data(), floats_.data()},
                    w_.columns, x_, tokens_, out);
  }

  const QuantizedMatrix& w_;
  const float* x_;
  int64_t tokens_;
  bool at_once_;
  std::vector<float> floats_;  // of 4 bits a row's factors; of what is not at once values
};

at::Tensor product(const at::Tensor& x, const QuantizedMatrix& w) {
  at::Tensor turned = at::empty({w.rows, x.size(0)}, at::kFloat);  // w x^T
  float* out = turned.data_ptr<float>();
  const at::Tensor tokens = tokens_of(x, w);
  parallel_for(0, w.rows, kGrain, [&](int64_t begin, int64_t end) {
    RowDots dots(w, tokens);
    for (int64_t row = begin; row < end; ++row) dots(row, out + row * x.size(0));
  });
  return turned.t().to(x.scalar_type()).contiguous();
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
  if (term.w.quantized == nullptr) return false;
  if (term.x.is_cuda())
    return term.transposed && cuda::thin_product_serves(term.x, *term.w.quantized);
  const at::ScalarType dtype = term.x.scalar_type();
  return term.x.size(0) < kFewRows && term.x.stride(1) == 1 &&
         (dtype == at::kFloat || dtype == at::kBFloat16);
}

at::Tensor thin_quantized_product(const Product& term) {
  if (term.x.is_cuda()) return cuda_kernels().thin_product(term.x, *term.w.quantized);
  if (!term.transposed) return product_by_rows(term.x, *term.w.quantized);
  return product(term.x, *term.w.quantized);
}

}  // namespace sftrun::kernels
