#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "../../src/kernels/cuda/matrix_views.h"
#include "../../src/kernels/cuda/thin_product.h"
#include "sftrun/kernels/ops.h"
#include "support/quant_formats.h"
#include "support/random_blocks.h"
#include "support/tensors.h"

// What each thread of the CUDA product of few rows reads and sums, walked on the host, against
// products in fp64 with the values that dequantize() has.
namespace sftrun::kernels {
namespace {

using test::close;
using test::normal;

#include "sftrun/weights/ggml_blocks.inl"

/// The kernel's access to tokens, of fp32 and bf16; what is read must lie in the tensor.
struct HostRows {
  const at::Tensor& x;
  void operator()(int64_t token, int64_t k, float* out) const {
    ASSERT_LT(token, x.size(0));
    ASSERT_LE(k + 8, x.size(1));
    for (int i = 0; i < 8; ++i) {
      const int64_t at = token * x.stride(0) + k + i;
      out[i] = x.scalar_type() == at::kFloat
                   ? x.const_data_ptr<float>()[at]
                   : static_cast<float>(x.const_data_ptr<at::BFloat16>()[at]);
    }
  }
};

/// A block's sums over its threads, in fp64: the order of the last few is not what is tested here.
template <int kTokens, typename View>
void add_block(const View& w, const at::Tensor& x, const cuda::ThinTile& tile, at::Tensor& y) {
  for (int thread = 0; thread < cuda::kThinThreads; ++thread) {
    float sums[View::kRowsAtOnce][kTokens] = {};
    cuda::add_thread_products<kTokens>(w, cuda::BytesInPlace<View>{w}, HostRows{x}, tile, thread,
                                       sums);
    for (int r = 0; r < View::kRowsAtOnce && tile.row + r < w.rows; ++r)
      for (int t = 0; t < kTokens && tile.token + t < tile.tokens; ++t)
        y[tile.token + t][tile.row + r] += static_cast<double>(sums[r][t]);
  }
}

template <int kTokens, typename View>
at::Tensor all_blocks(const View& w, const at::Tensor& x) {
  at::Tensor y = at::zeros({x.size(0), w.rows}, at::kDouble);
  for (int64_t row = 0; row < w.rows; row += View::kRowsAtOnce)
    for (int64_t token = 0; token < x.size(0); token += kTokens)
      add_block<kTokens>(w, x, {row, token, x.size(0)}, y);
  return y;
}

template <int kTokens>
at::Tensor walk(const QuantizedMatrix& w, const at::Tensor& x) {
  at::Tensor y;
  if (w.format == QuantFormat::kGgml) {
    ggml::with_format(w.ggml_type, [&](auto format) {
      y = all_blocks<kTokens>(
          cuda::GgmlView<decltype(format)>{w.packed.const_data_ptr<uint8_t>(), w.rows, w.columns},
          x);
    });
  } else if (w.info().bits == 8) {
    y = all_blocks<kTokens>(
        cuda::eight_bit_view(w,
                             w.format == QuantFormat::kFp8 ? EightBits::kE4m3 : EightBits::kInt8),
        x);
  } else {
    const cuda::FourBitTables tables = cuda::four_bit_tables(w);
    cuda::FourBitView view = cuda::four_bit_view(w);
    view.tables = &tables;
    cuda::with_groups(view, [&](const auto& groups) { y = all_blocks<kTokens>(groups, x); });
  }
  return y;
}

void expect_products(const QuantizedMatrix& w, at::ScalarType dtype) {
  const at::Tensor dense = dequantize(w, at::kFloat).to(at::kDouble).t();
  for (const int64_t tokens : {1, 3, 11}) {
    SCOPED_TRACE(tokens);
    const at::Tensor x = normal({tokens, w.columns}, 5, dtype);
    ASSERT_TRUE(cuda::thin_product_serves(x, w));
    const at::Tensor expected = at::mm(x.to(at::kDouble), dense);
    EXPECT_TRUE(close(walk<1>(w, x), expected, 1e-6));
    EXPECT_TRUE(close(walk<cuda::kThinTokens>(w, x), expected, 1e-6));
  }
}

TEST(ThinProduct, FourAndEightBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    // Rows that end in the middle of a factor's block, fewer groups than threads, and more.
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{1, 8}, {5, 40}, {7, 136}, {6, 1032}, {3, 2056}}) {
      for (const QuantFormat format : test::made_formats()) {
        if (ops_of(format).cuda == nullptr) continue;
        for (const bool nested : {false, true}) {
          SCOPED_TRACE(std::string(quant_info(format).name) + ", " + std::to_string(columns));
          expect_products(quantize(normal({rows, columns}, 6),
                                   {.format = format, .block_size = 32, .nested = nested}),
                          dtype);
        }
      }
    }
  }
}

TEST(ThinProduct, BlocksOfGgml) {
  for (const test::BlockType& type : test::block_types()) {
    SCOPED_TRACE(std::string(test::info_of(type.type).name));
    expect_products(test::random_blocks(type, 3, 7, 8), at::kFloat);
    expect_products(test::random_blocks(type, 2, 1, 9), at::kBFloat16);
  }
}

/// A part of a matrix whose nested factors are counted from the whole's first.
TEST(ThinProduct, RowsOfALargerMatrix) {
  const QuantizedMatrix whole = quantize(normal({260, 64}, 10), {.block_size = 32});
  expect_products(whole.narrow(131, 7), at::kFloat);
}

TEST(ThinProduct, ServesWhatItCanRead) {
  const QuantizedMatrix w = quantize(normal({4, 64}, 11), {});
  const at::Tensor x = normal({20, 72}, 12);
  using cuda::thin_product_serves;
  EXPECT_TRUE(thin_product_serves(x.narrow(1, 0, 64).narrow(0, 3, 5), w));
  EXPECT_TRUE(thin_product_serves(x.narrow(1, 8, 64).narrow(0, 0, 5), w));
  EXPECT_FALSE(thin_product_serves(x.narrow(1, 0, 64), w)) << "too many rows";
  EXPECT_FALSE(thin_product_serves(x.narrow(1, 1, 64).narrow(0, 0, 5), w)) << "not aligned";
  EXPECT_FALSE(thin_product_serves(normal({5, 65}, 1).narrow(1, 0, 64), w)) << "rows not aligned";
  EXPECT_FALSE(thin_product_serves(normal({64, 5}, 1).t(), w)) << "transposed";
  const at::Tensor few = x.narrow(1, 0, 64).narrow(0, 0, 5);
  EXPECT_FALSE(thin_product_serves(few, quantize(normal({4, 64}, 1), {.block_size = 4})))
      << "two factors in a group";
  EXPECT_FALSE(thin_product_serves(normal({1, 36}, 1), quantize(normal({3, 36}, 1), {})))
      << "a row ends within a group";
}

/// The other code of the same views: values one by one, and groups, to the bit.
TEST(ThinProduct, ValuesAreThoseOfDequantize) {
  for (const bool nested : {false, true}) {
    const QuantizedMatrix matrix = quantize(normal({41, 56}, 13), {.nested = nested});
    const cuda::FourBitTables tables = cuda::four_bit_tables(matrix);
    cuda::FourBitView view = cuda::four_bit_view(matrix);
    view.tables = &tables;
    const at::Tensor values = dequantize(matrix, at::kFloat).flatten();
    const auto* expected = values.const_data_ptr<float>();
    for (int64_t i = 0; i < values.numel(); ++i) ASSERT_EQ(view.value(i), expected[i]) << i;
    cuda::with_groups(view, [&](const auto& groups) {
      for (int64_t group = 0; group < values.numel() / 8; ++group) {
        float eight[8];
        const uint8_t* from = groups.bytes() + groups.bytes_before(group);
        const float factor = groups.decode(from, 0, group, eight);
        for (int i = 0; i < 8; ++i) ASSERT_EQ(eight[i] * factor, expected[group * 8 + i]) << group;
      }
    });
  }
}

}  // namespace
}  // namespace sftrun::kernels
