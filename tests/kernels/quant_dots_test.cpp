#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/ops.h"
#include "support/matmul.h"
#include "support/quant_formats.h"
#include "support/random_blocks.h"
#include "support/tensors.h"

// Rows in fewer bits times tokens, of every instruction set, against products in fp64 with the
// values of dequantize().
namespace sftrun::kernels {
namespace {

using test::close;
using test::matmul_nt;
using test::normal;

class QuantDots : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const CpuKernels* table = cpu_kernels_by_name(GetParam());
    if (table == nullptr) table = &cpu_kernels();  // a lesser processor: what it has
    dots_ = &table->dots;
  }

  /// w x^T, a row at a time.
  at::Tensor products(const QuantizedMatrix& w, const at::Tensor& x) const {
    const int64_t n = w.columns, tokens = x.size(0);
    at::Tensor split = at::empty_like(x), out = at::empty({w.rows, tokens});
    dots_->split_pairs(x.const_data_ptr<float>(), x.numel(), split.data_ptr<float>());
    const auto* packed = w.packed.const_data_ptr<uint8_t>();
    for (int64_t row = 0; row < w.rows; ++row) {
      float* to = out.data_ptr<float>() + row * tokens;
      if (w.format == QuantFormat::kGgml) {
        dots_->dot_ggml(static_cast<uint32_t>(w.ggml_type),
                        packed + row * (w.packed.numel() / w.rows), n, x.const_data_ptr<float>(),
                        tokens, to);
      } else if (w.info().bits == 8) {
        const auto form = w.format == QuantFormat::kFp8 ? EightBits::kE4m3 : EightBits::kInt8;
        dots_->dot_8bit({form, packed + row * n, w.absmax.const_data_ptr<float>() + row, n}, n,
                        x.const_data_ptr<float>(), tokens, to);
      } else {
        std::vector<float> factors(static_cast<size_t>(w.num_blocks()));
        w.block_scales(0, factors);
        dots_->dot_4bit({packed + row * n / 2, row * n % w.block_size, w.block_size,
                         quant_table(w.format).data(), factors.data() + row * n / w.block_size},
                        n, split.const_data_ptr<float>(), tokens, to);
      }
    }
    return out;
  }

  void expect_products(const QuantizedMatrix& w) const {
    const at::Tensor values = dequantize(w, at::kFloat).to(at::kDouble),
                     x = normal({9, w.columns}, 5);
    const at::Tensor all = products(w, x);
    EXPECT_TRUE(close(all, at::mm(values, x.to(at::kDouble).t()), 1e-6));
    // Whatever is beside it, a token's sums have the same bits.
    for (const int64_t tokens : {1, 3, 5})
      EXPECT_TRUE(at::equal(products(w, x.narrow(0, 1, tokens)), all.narrow(1, 1, tokens)));
  }

  const DotKernels* dots_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Isa, QuantDots, testing::Values("generic", "avx2", "avx512"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(QuantDots, FourBits) {
  for (const QuantFormat format : {QuantFormat::kNf4, QuantFormat::kFp4}) {
    for (const bool nested : {false, true}) {
      // Rows within a block, across its end, of several.
      for (const auto& [rows, columns, block_size] :
           {std::tuple<int64_t, int64_t, int64_t>{5, 32, 128},
            {4, 96, 64},
            {7, 160, 32},
            {3, 4096, 64},
            {2, 2080, 4096}}) {
        SCOPED_TRACE(std::to_string(columns) + " in blocks of " + std::to_string(block_size));
        expect_products(quantize(normal({rows, columns}, 6),
                                 {.format = format, .block_size = block_size, .nested = nested}));
      }
    }
  }
}

TEST_P(QuantDots, EightBits) {
  for (const QuantFormat format : {QuantFormat::kFp8, QuantFormat::kInt8})
    for (const int64_t columns : {32, 96, 1120})
      expect_products(quantize(normal({3, columns}, 7), {.format = format}));
}

TEST_P(QuantDots, BlocksOfGgml) {
  for (const test::BlockType& type : test::block_types()) {
    SCOPED_TRACE(std::string(test::info_of(type.type).name));
    expect_products(test::random_blocks(type, 4, 5, 8));
  }
}

at::Tensor dense_products(const DotKernels& dots, const at::Tensor& w, const at::Tensor& x) {
  const at::Tensor out = at::full({x.size(0), w.size(0)}, -1.0F);
  const auto* of = x.const_data_ptr<float>();
  if (w.scalar_type() == at::kFloat) {
    dots.dense_rows_fp32({w.const_data_ptr<float>(), w.stride(0), w.size(0)}, w.size(1), of,
                         x.size(0), out.data_ptr<float>(), out.stride(0));
  } else {
    dots.dense_rows_bf16({static_cast<const uint16_t*>(w.const_data_ptr()), w.stride(0), w.size(0)},
                         w.size(1), of, x.size(0), out.data_ptr<float>(), out.stride(0));
  }
  return out;
}

TEST_P(QuantDots, DenseRows) {
  for (const int64_t n : {1, 15, 31, 32, 64, 577, 4100}) {
    for (const int64_t rows : {1, 3, 4, 9}) {
      for (const int64_t tokens : {1, 2, 3, 4, 7, 63}) {
        SCOPED_TRACE(fmt::format("{} rows of {}, {} tokens", rows, n, tokens));
        const at::Tensor wide = normal({rows, n + 5}, 14), x = normal({tokens, n}, 15);
        for (const at::Tensor& whole : {wide, wide.to(at::kBFloat16)}) {
          const at::Tensor w = whole.narrow(1, 3, n), out = dense_products(*dots_, w, x);
          EXPECT_TRUE(close(out, at::mm(x.to(at::kDouble), w.to(at::kDouble).t()), 1e-6));
          const at::Tensor last = x.narrow(0, tokens - 1, 1).contiguous();
          EXPECT_TRUE(at::equal(dense_products(*dots_, w, last)[0], out[tokens - 1]))
              << "a token's products depend on the other tokens";
        }
      }
    }
  }
}

/// Damaged scales make sums NaN or infinite, only in their rows.
TEST_P(QuantDots, NaNStaysNaN) {
  const auto expect_broken_first_row = [&](const QuantizedMatrix& w) {
    const at::Tensor out = products(w, normal({5, w.columns}, 9));
    EXPECT_FALSE(out[0].isfinite().any().item<bool>());
    EXPECT_TRUE(out.narrow(0, 1, w.rows - 1).isfinite().all().item<bool>());
  };
  for (const float factor :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const QuantFormat format : test::made_formats()) {
      QuantizedMatrix w = quantize(normal({3, 64}, 10), {.format = format, .nested = false});
      w.absmax[0] = factor;
      expect_broken_first_row(w);
    }
  }
  for (const test::BlockType& type : test::block_types()) {
    SCOPED_TRACE(std::string(test::info_of(type.type).name));
    QuantizedMatrix w = test::random_blocks(type, 3, 2, 11);
    auto* first = w.packed.data_ptr<uint8_t>();
    if (type.halves.empty())
      first[0] = 255;  // MXFP4's exponent for NaN
    else
      std::memcpy(first + type.halves.front(), "\x00\x7e", 2);  // fp16's NaN
    expect_broken_first_row(w);
  }
}

/// Rows that are no whole groups go another way.
TEST(ThinProducts, ProductsOfAnyShape) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t tokens : {1, 2, 7, 63}) {
      for (const auto& [rows, columns, block_size] :
           {std::tuple<int64_t, int64_t, int64_t>{17, 1, 64},
            {40, 31, 64},
            {33, 1090, 64},
            {65, 2112, 64},
            {9, 96, 48}}) {
        for (const QuantFormat format : test::formats_with_exact_activations()) {
          SCOPED_TRACE(std::string(quant_info(format).name) + ", " + std::to_string(tokens) +
                       " x " + std::to_string(columns));
          const QuantizedMatrix w =
              quantize(normal({rows, columns}, 12), {.format = format, .block_size = block_size});
          const at::Tensor x = normal({tokens, columns + 3}, 13, dtype).narrow(1, 2, columns),
                           expected = at::mm(x.to(at::kDouble),
                                             dequantize(w, at::kFloat).to(at::kDouble).t());
          // Rounded once.
          EXPECT_TRUE(close(matmul_nt(x, w), expected, dtype == at::kFloat ? 1e-6 : 4e-3));
        }
      }
    }
  }
}

TEST(ThinProducts, OfDenseMatrices) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t tokens : {1, 2, 4, 5}) {
      const at::Tensor x = normal({tokens, 80}, 16, dtype).narrow(1, 3, 70),
                       w = normal({45, 90}, 17, dtype).narrow(1, 5, 70),
                       bias = normal({45}, 18, dtype), residual = normal({tokens, 45}, 19, dtype);
      const at::Tensor product = at::mm(x.to(at::kDouble), w.to(at::kDouble).t());
      const double tolerance = dtype == at::kFloat ? 1e-6 : 1.2e-2;  // rounded at most three times
      EXPECT_TRUE(close(matmul_nt(x, w), product, tolerance));
      EXPECT_TRUE(close(matmul_sum({{x, w, true}}, residual, bias),
                        product + residual.to(at::kDouble) + bias.to(at::kDouble), tolerance));
      // A matrix that lies the other way goes another way.
      EXPECT_TRUE(close(matmul_nt(x, w.t().contiguous().t()), product, tolerance));
    }
  }
}

}  // namespace
}  // namespace sftrun::kernels
