#include "thin_product.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "../brgemm.h"
#include "../cuda/matrix_views.h"
#include "../operands.h"
#include "../parallel.h"
#include "../quant/eight_bits_of.h"
#include "sftrun/kernels/cuda_registry.h"

namespace sftrun::kernels {
namespace {

constexpr int64_t kFewRows = 64;       // fewer rows do not pay for packing whole panels
constexpr int64_t kFewDenseRows = 4;   // up to this many rows dot products are faster for a dense w
constexpr int64_t kDepth = 1024;       // dequantised at a time, if rows are not whole groups
constexpr int64_t kGrain = 16 * 1024;  // minimum number of values of w per thread

const DotKernels& dots() {
  return cpu_kernels().dots;
}

/// Whether rows of w consist of whole groups of 32 values, which are multiplied as they are
/// decoded.
bool is_unpacked_at_once(const QuantizedMatrix& w) {
  constexpr int64_t kAtOnce = 32;
  return w.columns % kAtOnce == 0 && (!is_4bit(w.format) || w.block_size % kAtOnce == 0);
}

/// x in fp32 [count, K]; for 4-bit matrices reordered by `split_pairs`.
struct Tokens {
  const float* x;
  int64_t count;
};

/// x w^T by rows of w: calls body(row, out) for each row; each thread has its own body.
template <typename MakeBody>
at::Tensor each_row(const at::Tensor& x, int64_t rows, const MakeBody& make_body) {
  at::Tensor turned = at::empty({rows, x.size(0)}, at::kFloat);  // w x^T
  float* out = turned.data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, x.size(1)));
  parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    auto body = make_body();
    for (int64_t row = begin; row < end; ++row) body(row, out + row * x.size(0));
  });
  return turned.t().to(x.scalar_type()).contiguous();
}

template <typename T>
at::Tensor dense_product(const Tokens& tokens, const at::Tensor& x, const at::Tensor& w) {
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

at::Tensor four_bit_product(const Tokens& tokens, const at::Tensor& x, const QuantizedMatrix& w) {
  const int64_t n = w.columns;
  FourBitRow any{.packed = w.packed.const_data_ptr<uint8_t>(),
                 .first = 0,
                 .block_size = w.block_size,
                 .table = quant_table(w.format).data(),
                 .factors = w.is_nested() ? nullptr : w.absmax.const_data_ptr<float>()};
  return each_row(x, w.rows, [&, any] {
    std::vector<float> nested(static_cast<size_t>(n / w.block_size + 2));
    return [&, any, nested](int64_t row, float* out) mutable {
      const int64_t first = row * n, block = first / w.block_size,
                    last = (first + n - 1) / w.block_size;
      if (w.is_nested())
        w.block_factors(block, {nested.data(), static_cast<size_t>(last - block + 1)});
      FourBitRow of = any;
      of.packed += first / 2;
      of.first = first % w.block_size;
      of.factors = w.is_nested() ? nested.data() : any.factors + block;
      dots().dot_4bit(of, n, tokens.x, tokens.count, out);
    };
  });
}

at::Tensor eight_bit_product(const Tokens& tokens, const at::Tensor& x, const QuantizedMatrix& w) {
  const auto* codes = w.packed.const_data_ptr<uint8_t>();
  const float* factors = w.absmax.defined() ? w.absmax.const_data_ptr<float>() : nullptr;
  const EightBits form = eight_bits_of(w.format);
  return each_row(x, w.rows, [&] {
    return [&](int64_t row, float* out) {
      const float factor = factors == nullptr ? 1.0F : factors[row];
      dots().dot_8bit({form, codes + row * w.columns, factor}, w.columns, tokens.x, tokens.count,
                      out);
    };
  });
}

at::Tensor ggml_product(const Tokens& tokens, const at::Tensor& x, const QuantizedMatrix& w) {
  const auto* blocks = w.packed.const_data_ptr<uint8_t>();
  const auto type = static_cast<uint32_t>(w.ggml_type);
  const int64_t row_bytes = w.packed.numel() / w.rows;
  return each_row(x, w.rows, [&] {
    return [&](int64_t row, float* out) {
      dots().dot_ggml(type, blocks + row * row_bytes, w.columns, tokens.x, tokens.count, out);
    };
  });
}

/// Any shape: rows are dequantised in parts that stay in the L1 cache.
at::Tensor product_of_parts(const Tokens& tokens, const at::Tensor& x, const QuantizedMatrix& w) {
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
  at::Tensor in_fp32 = x.to(at::kFloat).contiguous();
  const bool is_split =
      w.quantized != nullptr && is_4bit(w.quantized->format) && is_unpacked_at_once(*w.quantized);
  if (is_split) {
    const at::Tensor split = at::empty_like(in_fp32);
    dots().split_pairs(in_fp32.const_data_ptr<float>(), split.numel(), split.data_ptr<float>());
    in_fp32 = split;
  }
  const Tokens tokens{in_fp32.const_data_ptr<float>(), x.size(0)};
  if (w.quantized == nullptr) {
    return w.dense.scalar_type() == at::kFloat ? dense_product<float>(tokens, x, w.dense)
                                               : dense_product<uint16_t>(tokens, x, w.dense);
  }
  const QuantizedMatrix& matrix = *w.quantized;
  if (!is_unpacked_at_once(matrix)) return product_of_parts(tokens, x, matrix);
  if (is_4bit(matrix.format)) return four_bit_product(tokens, x, matrix);
  return is_8bit(matrix.format) ? eight_bit_product(tokens, x, matrix)
                                : ggml_product(tokens, x, matrix);
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
