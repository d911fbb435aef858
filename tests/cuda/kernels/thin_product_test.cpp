#include <cmath>

#include "matmul/thin_product_launch.h"
#include "packed.h"

namespace sftrun::kernels::cuda::test {
namespace {

struct Shape {
  int64_t rows, columns;
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.rows << " x " << shape.columns;
}

SFTRUN_FOR_TYPES(CudaThinProduct);

/// Tokens, and how many elements more than its values each takes: multiples of 16 bytes.
struct Tokens {
  int64_t count, gap;
};
void PrintTo(const Tokens& tokens, std::ostream* out) {
  *out << tokens.count << " with gaps of " << tokens.gap;
}
constexpr Tokens kFew[] = {{1, 0}, {2, 8}, {4, 0}};
constexpr Tokens kAll[] = {{0, 0},  {1, 0},  {2, 0},  {3, 16}, {4, 0},  {5, 8},
                           {6, 0},  {7, 0},  {8, 0},  {9, 0},  {10, 8}, {11, 0},
                           {12, 0}, {13, 0}, {14, 0}, {15, 0}, {16, 24}};

std::vector<Exact> expected_of(const std::vector<float>& x, const std::vector<float>& w,
                               const Shape& shape, const Tokens& tokens) {
  const int64_t stride = shape.columns + tokens.gap;
  std::vector<Exact> y;
  for (int64_t token = 0; token < tokens.count; ++token) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      Exact dot{0, 0};
      for (int64_t i = 0; i < shape.columns; ++i) {
        const double term = double{x[static_cast<size_t>(token * stride + i)]} *
                            w[static_cast<size_t>(row * shape.columns + i)];
        dot.value += term, dot.size += std::fabs(term);
      }
      y.push_back(dot);
    }
  }
  return y;
}

/// @param launch launch(product)   @param w [rows, columns]
template <typename Launch>
void expect_products(Type type, const std::vector<float>& w, const Shape& shape,
                     const Tokens& tokens, const Launch& launch) {
  const int64_t stride = shape.columns + tokens.gap,
                n = tokens.count == 0 ? 0 : tokens.count * stride - tokens.gap;
  const Memory x = Memory::of(type, normal(n, 1));
  const auto out = in_every_order([&] {
    std::vector<Memory> made{Memory::nans(type, tokens.count * shape.rows, 1)};
    launch(ThinProduct{type, x.data(), stride, tokens.count, made[0].data()});
    return made;
  });
  EXPECT_TRUE(
      close(type, out[0], expected_of(floats(type, x), w, shape, tokens), of_dot(shape.columns)));
}

void expect_4bit(Type type, const FourBitCase& c, const Shape& shape, const Tokens& tokens,
                 int64_t shift_of_codes = 0) {
  const FourBitMatrix w(c, shape.rows, shape.columns, Factors::kFinite, 1, shift_of_codes);
  ASSERT_TRUE(w.view().groups_are_whole());
  expect_products(type, w.values(), shape, tokens, [&](const ThinProduct& product) {
    launch_thin_product_4bit(product, w.view(), w.tables(), nullptr);
  });
}

/// Rows that end within a factor's block, fewer groups than threads and more, rows that are no
/// multiple of those that a block of threads has.
constexpr Shape kShapes[] = {{0, 8},   {1, 8},   {2, 16},   {5, 40},
                             {7, 136}, {4, 576}, {6, 1032}, {3, 2056}};

TEST_P(CudaThinProduct, FourBits) {
  for_each("shape", kShapes, [&](const Shape& shape) {
    for_each("tokens", kFew, [&](const Tokens& tokens) {
      expect_4bit(type(), {false, 64, false, 0}, shape, tokens);
      expect_4bit(type(), {true, 32, true, 250}, shape, tokens);
    });
  });
}
TEST_P(CudaThinProduct, FourBitsOfEveryBlockSize) {
  for_each("block size",
           std::initializer_list<int64_t>{8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096},
           [&](int64_t size) {
             expect_4bit(type(), {false, size, false, 0}, {5, 584}, {2, 0});
             expect_4bit(type(), {false, size, true, 131}, {5, 584}, {2, 0});
           });
}

void expect_8bit(Type type, EightBits form, bool with_factors, const Shape& shape,
                 const Tokens& tokens, int64_t shift = 0) {
  EightBitMatrix w(form, with_factors, shape.rows, shape.columns, shift);
  ASSERT_TRUE(w.view().groups_are_whole());
  w.make_finite();
  expect_products(type, w.values(), shape, tokens, [&](const ThinProduct& product) {
    launch_thin_product_8bit(product, w.view(), nullptr);
  });
}

TEST_P(CudaThinProduct, EightBits) {
  for_each("shape", kShapes, [&](const Shape& shape) {
    for_each("tokens", kFew, [&](const Tokens& tokens) {
      for (const bool with_factors : {true, false}) {
        expect_8bit(type(), EightBits::kE4m3, with_factors, shape, tokens);
        expect_8bit(type(), EightBits::kInt8, with_factors, shape, tokens);
      }
    });
  });
}

TEST_P(CudaThinProduct, Fp8Blocks) {
  for_each("shape", kShapes, [&](const Shape& shape) {
    for_each("tokens", kFew, [&](const Tokens& tokens) {
      for (const int64_t block_size : {32, 128}) {
        Fp8BlockMatrix w(shape.rows, shape.columns, block_size);
        w.make_finite();
        expect_products(type(), w.values(), shape, tokens, [&](const ThinProduct& product) {
          launch_thin_product_fp8_blocks(product, w.view(), nullptr);
        });
      }
    });
  });
}

TEST_P(CudaThinProduct, Int4Groups) {
  for_each("shape", kShapes, [&](const Shape& shape) {
    for_each("tokens", kFew, [&](const Tokens& tokens) {
      for (const int64_t group_size : {32, 4096}) {
        const Int4GroupMatrix w(shape.rows, shape.columns, group_size);
        ASSERT_TRUE(w.view().groups_are_whole());
        expect_products(type(), w.values(), shape, tokens, [&](const ThinProduct& product) {
          launch_thin_product_int4_groups(product, w.view(), nullptr);
        });
      }
    });
  });
}

/// Rows are copied to be decoded in words of 16 bytes, and each begins elsewhere in one.
TEST_P(CudaThinProduct, CodesAtEachWord) {
  for_each("shift", std::initializer_list<int64_t>{4, 8, 12}, [&](int64_t shift) {
    for (const Shape& shape : {Shape{1, 8}, Shape{5, 40}, Shape{6, 136}}) {
      expect_4bit(type(), {false, 64, false, 0}, shape, {2, 0}, shift);
      expect_8bit(type(), EightBits::kInt8, true, shape, {2, 0}, shift);
    }
  });
}

void expect_ggml(Type type, const GgmlCase& c, int64_t rows, int64_t blocks_of_row,
                 const Tokens& tokens, int64_t shift) {
  const Shape shape{rows, blocks_of_row * c.numbers};
  const std::vector<uint8_t> blocks = random_blocks(c, shape.rows * blocks_of_row, 2);
  const Memory bytes = Memory::raw(blocks, shift);
  expect_products(type, values_of(c, blocks), shape, tokens, [&](const ThinProduct& product) {
    launch_thin_product_ggml(product, c.type, bytes.as<uint8_t>(), shape.rows, shape.columns,
                             nullptr);
  });
}

TEST_P(CudaThinProduct, BlocksOfGgml) {
  for_each("format", ggml_cases(), [&](const GgmlCase& c) {
    for (const int64_t blocks_of_row : {1, 3}) {
      for_each("tokens", kFew,
               [&](const Tokens& tokens) { expect_ggml(type(), c, 3, blocks_of_row, tokens, 0); });
    }
  });
}
TEST_P(CudaThinProduct, BlocksOfGgmlAtAnyAddress) {
  for_each("format", ggml_cases(), [&](const GgmlCase& c) {
    for_each("shift", std::initializer_list<int64_t>{1, 2, 3, 6, 9, 15}, [&](int64_t shift) {
      expect_ggml(type(), c, 1, 1, {1, 0}, shift);
      expect_ggml(type(), c, 4, 2, {2, 8}, shift);
    });
  });
}
/// Of more than 4096 columns each row is copied in several parts.
TEST_P(CudaThinProduct, RowsOfSeveralParts) {
  for_each("columns", std::initializer_list<int64_t>{4096, 4352, 8448}, [&](int64_t columns) {
    for_each("format", ggml_cases(), [&](const GgmlCase& c) {
      expect_ggml(type(), c, 3, columns / c.numbers, {2, 0}, 2);
    });
    expect_4bit(type(), {true, 64, true, 3}, {5, columns}, {2, 0}, 4);
    expect_8bit(type(), EightBits::kE4m3, true, {3, columns}, {2, 0}, 4);
  });
}

TEST_P(CudaThinProduct, AnyNumberOfTokens) {
  for_each("tokens", kAll, [&](const Tokens& tokens) {
    expect_4bit(type(), {false, 64, false, 0}, {5, 72}, tokens);
    expect_8bit(type(), EightBits::kInt8, true, {5, 72}, tokens);
  });
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
