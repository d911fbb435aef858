#include <algorithm>
#include <cmath>
#include <limits>

#include "packed.h"
#include "quant/dequantize_launch.h"

namespace sftrun::kernels::cuda::test {
namespace {

/// What is between rows.
constexpr float kUntouched = 7;

/// Rows of `columns`, with `gap` elements behind each.
std::vector<float> apart(const std::vector<float>& values, int64_t columns, int64_t gap) {
  std::vector<float> all;
  for (size_t i = 0; i < values.size(); ++i) {
    all.push_back(values[i]);
    if ((i + 1) % static_cast<size_t>(columns) == 0)
      all.insert(all.end(), static_cast<size_t>(gap), kUntouched);
  }
  return all;
}

/// One launch's result in every order, for each type; `launch(type, to)`.
template <typename Launch>
void expect_values(const std::vector<float>& expected, int64_t columns, int64_t gap, int64_t shift,
                   const Launch& launch) {
  const std::vector<float> no_numbers(expected.size(), std::nanf(""));
  for (const Type type : kTypes) {
    SCOPED_TRACE(name_of(type));
    const auto out = in_every_order([&] {
      std::vector<Memory> made{Memory::of(type, apart(no_numbers, columns, gap), shift)};
      launch(type, ValueRows{made[0].data(), columns + gap});
      return made;
    });
    EXPECT_TRUE(same(type, out[0], rounded(type, apart(expected, columns, gap))));
  }
}

/// The CPU's bf16 kernels, which round as the others do.
template <typename Kernel>
void expect_cpu(const std::vector<float>& expected, const Kernel& kernel) {
  const auto n = static_cast<int64_t>(expected.size());
  const Memory wide = Memory::nans(Type::kFloat32, n), half = Memory::nans(Type::kBFloat16, n);
  kernel(cpu_kernels().f32, wide.as<float>());
  kernel(cpu_kernels().bf16, half.as<uint16_t>());
  EXPECT_TRUE(same(Type::kFloat32, wide, expected));
  EXPECT_TRUE(same(Type::kBFloat16, half, rounded(Type::kBFloat16, expected)));
}

// ---- Four bits.

struct Shape {
  int64_t rows, columns;
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.rows << " x " << shape.columns;
}

void expect_4bit(const FourBitCase& c, const Shape& shape, Factors scales, int64_t shift,
                 int64_t shift_of_codes = 0, int64_t gap = 0) {
  const FourBitMatrix matrix(c, shape.rows, shape.columns, scales, shift, shift_of_codes);
  const std::vector<float> expected = matrix.values();
  const std::vector<float> of_blocks = matrix.scales();
  expect_cpu(expected, [&](const auto& kernels, auto* out) {
    kernels.dequantize_4bit(matrix.view().packed, 0, shape.rows * shape.columns, c.block_size,
                            matrix.tables().values, of_blocks.data(), out);
  });
  for_each("shift of y", kShifts, [&](int64_t shift_of_y) {
    expect_values(expected, shape.columns, gap, shift_of_y, [&](Type type, const ValueRows& to) {
      launch_dequantize_4bit(type, matrix.view(), matrix.tables(), to, nullptr);
    });
  });
}

constexpr int64_t kBlockSizes[] = {32, 64, 128, 256, 512, 1024, 2048, 4096, 2, 4, 8, 50, 66, 100};
/// Multiples of nothing, and of 8: a value, an odd number of them, and blocks that end within rows.
constexpr Shape kShapes[] = {{0, 8},   {1, 1},   {1, 7},    {7, 1},    {3, 9},  {5, 31},
                             {3, 255}, {1, 257}, {13, 129}, {1, 8},    {5, 40}, {65, 64},
                             {3, 576}, {9, 264}, {2, 4096}, {1, 4104}, {8, 9}};

TEST(CudaDequantize, FourBits) {
  for_each("block size", kBlockSizes, [&](int64_t block_size) {
    for_each("shape", kShapes, [&](const Shape& shape) {
      expect_4bit({false, block_size, false, 0}, shape, Factors::kFinite, 0);
    });
  });
}
TEST(CudaDequantize, FourBitsOfFp4WithFactorsAtAnyAddress) {
  for_each("block size", kBlockSizes, [&](int64_t block_size) {
    for (const Shape& shape : {Shape{13, 129}, Shape{5, 40}, Shape{2, 576}})
      expect_4bit({true, block_size, false, 0}, shape, Factors::kFinite, 1);
  });
}
TEST(CudaDequantize, FourBitsWithNestedFactors) {
  for_each("block size", kBlockSizes, [&](int64_t block_size) {
    for_each("first block", std::initializer_list<int64_t>{0, 1, 131, 255, 256, 1000},
             [&](int64_t first) {
               for (const Shape& shape : {Shape{13, 129}, Shape{5, 40}, Shape{20, 576}})
                 expect_4bit({first % 2 == 0, block_size, true, first}, shape, Factors::kFinite, 1);
             });
  });
}
TEST(CudaDequantize, FourBitsWithScalesThatAreNaN) {
  for (const bool nested : {false, true}) {
    expect_4bit({false, 64, nested, 200}, {7, 129}, Factors::kAny, 0);
    expect_4bit({false, 64, nested, 0}, {10, 576}, Factors::kAny, 0);
    expect_4bit({true, 2, nested, 0}, {64, 33}, Factors::kAny, 0);
  }
}

/// Codes are copied in words of 16 bytes wherever they begin and end: fewer than a word of them,
/// some before the first whole word, and some behind the last.
TEST(CudaDequantize, FourBitsAtEachWord) {
  for_each("shift of codes", std::initializer_list<int64_t>{0, 1, 4, 8, 12, 14},
           [&](int64_t shift) {
             for (const Shape& shape : {Shape{1, 8}, Shape{1, 16}, Shape{1, 24}, Shape{1, 40},
                                        Shape{3, 72}, Shape{1, 4096}, Shape{1, 4104}})
               expect_4bit({false, 64, false, 0}, shape, Factors::kFinite, 0, shift);
           });
}

/// Gaps after which rows begin at multiples of 16 bytes in every type, in fp32 alone, or in none.
constexpr int64_t kGaps[] = {1, 4, 8, 16, 48};

TEST(CudaDequantize, FourBitsInRowsFurtherApartThanLong) {
  for_each("gap", kGaps, [&](int64_t gap) {
    for (const Shape& shape : {Shape{1, 8}, Shape{5, 31}, Shape{13, 129}, Shape{65, 64},
                               Shape{9, 264}, Shape{3, 4104}}) {
      expect_4bit({false, 64, false, 0}, shape, Factors::kFinite, 0, 0, gap);
      expect_4bit({true, 64, true, 131}, shape, Factors::kFinite, 0, 0, gap);
    }
  });
}

// ---- Eight bits.

void expect_8bit(EightBits form, bool with_scales, const Shape& shape, int64_t shift,
                 int64_t shift_of_y, int64_t gap = 0) {
  const EightBitMatrix matrix(form, with_scales, shape.rows, shape.columns, shift);
  const std::vector<float> expected = matrix.values();
  expect_cpu(expected, [&](const auto& kernels, auto* out) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      kernels.dequantize_8bit(form, matrix.view().codes + row * shape.columns, shape.columns,
                              with_scales ? matrix.view().scales[row] : 1.0F,
                              out + row * shape.columns);
    }
  });
  expect_values(expected, shape.columns, gap, shift_of_y, [&](Type type, const ValueRows& to) {
    launch_dequantize_8bit(type, matrix.view(), to, nullptr);
  });
}

TEST(CudaDequantize, EightBits) {
  for_each("shape", kShapes, [&](const Shape& shape) {
    for_each("shift", kShifts, [&](int64_t shift) {
      for (const EightBits form : {EightBits::kE4m3, EightBits::kInt8}) {
        expect_8bit(form, true, shape, shift, shift);
        expect_8bit(form, false, shape, shift, shift);
      }
    });
  });
}
/// Groups are whole, of words of 4 bytes or not, in rows of 8 or not.
TEST(CudaDequantize, EightBitsEachAtAnyAddress) {
  for (const Shape& shape : {Shape{5, 40}, Shape{8, 9}, Shape{8, 7}, Shape{3, 2056}}) {
    for_each("shift of codes", std::initializer_list<int64_t>{0, 1, 2, 4, 8}, [&](int64_t shift) {
      for (const int64_t shift_of_y : {0, 1, 4})
        expect_8bit(EightBits::kInt8, true, shape, shift, shift_of_y);
    });
  }
}

TEST(CudaDequantize, EightBitsInRowsFurtherApartThanLong) {
  for_each("gap", kGaps, [&](int64_t gap) {
    for (const Shape& shape : {Shape{1, 8}, Shape{5, 31}, Shape{13, 129}, Shape{65, 64},
                               Shape{9, 264}, Shape{3, 4104}}) {
      expect_8bit(EightBits::kE4m3, false, shape, 0, 0, gap);
      expect_8bit(EightBits::kInt8, true, shape, 0, 0, gap);
    }
  });
}

/// More groups than the blocks of a launch take at once: these go on to the next ones.
TEST(CudaDequantize, EightBitsOfMoreThanAGrid) {
  constexpr int64_t kColumns = 4096, kRows = 8192 + 3;
  const EightBitMatrix matrix(EightBits::kInt8, true, kRows, kColumns);
  const Memory y = Memory::nans(Type::kBFloat16, kRows * kColumns);
  std::vector<uint16_t> row(kColumns);
  launch_dequantize_8bit(Type::kBFloat16, matrix.view(), {y.data(), kColumns}, nullptr);
  for (int64_t i = 0; i < kRows; ++i) {
    cpu_kernels().bf16.dequantize_8bit(EightBits::kInt8, matrix.view().codes + i * kColumns,
                                       kColumns, matrix.view().scales[i], row.data());
    ASSERT_EQ(std::memcmp(row.data(), bf16(y) + i * kColumns, row.size() * 2), 0) << "row " << i;
  }
}

void expect_fp8_blocks(const Shape& shape, int64_t block_size, int64_t shift, int64_t shift_of_y,
                       int64_t gap = 0) {
  const Fp8BlockMatrix matrix(shape.rows, shape.columns, block_size, shift);
  expect_values(matrix.values(), shape.columns, gap, shift_of_y,
                [&](Type type, const ValueRows& to) {
                  launch_dequantize_fp8_blocks(type, matrix.view(), to, nullptr);
                });
}

TEST(CudaDequantize, Fp8Blocks) {
  for_each("shape", kShapes, [&](const Shape& shape) {
    for (const int64_t block_size : {32, 64, 128}) expect_fp8_blocks(shape, block_size, 0, 0);
  });
  for (const Shape& shape : {Shape{5, 40}, Shape{8, 9}, Shape{3, 2056}}) {
    for (const int64_t shift : {1, 4, 8}) expect_fp8_blocks(shape, 128, shift, 1);
    for (const int64_t gap : kGaps) expect_fp8_blocks(shape, 32, 0, 0, gap);
  }
}

void expect_int4_groups(const Shape& shape, int64_t group_size, int64_t shift, int64_t shift_of_y,
                        int64_t gap = 0) {
  const Int4GroupMatrix matrix(shape.rows, shape.columns, group_size, shift);
  expect_values(matrix.values(), shape.columns, gap, shift_of_y,
                [&](Type type, const ValueRows& to) {
                  launch_dequantize_int4_groups(type, matrix.view(), to, nullptr);
                });
}

/// Groups of eights and others, a group for a whole row, and columns in any group.
TEST(CudaDequantize, Int4Groups) {
  for_each("shape", kShapes, [&](const Shape& shape) {
    for (const int64_t group_size : {32, 12, 128, 4096, 0})
      expect_int4_groups(shape, group_size, 0, 0);
  });
  for (const Shape& shape : {Shape{5, 40}, Shape{8, 9}, Shape{3, 2056}}) {
    for (const int64_t shift : {1, 4, 8}) expect_int4_groups(shape, 128, shift, 1);
    for (const int64_t gap : kGaps) {
      expect_int4_groups(shape, 32, 0, 0, gap);
      expect_int4_groups(shape, 0, 0, 0, gap);
    }
  }
}

// ---- ggml's blocks.

void expect_ggml(const GgmlCase& c, const std::vector<uint8_t>& blocks, int64_t shift,
                 int64_t rows = 1, int64_t gap = 0) {
  const Memory bytes = Memory::raw(blocks, shift);
  const std::vector<float> expected = values_of(c, blocks);
  const auto n = static_cast<int64_t>(expected.size());
  expect_cpu(expected, [&](const auto& kernels, auto* out) {
    kernels.dequantize_ggml(static_cast<uint32_t>(c.type), blocks.data(), 0, n, out);
  });
  const int64_t columns = std::max<int64_t>(1, n / rows);  // of no rows: any
  expect_values(expected, columns, gap, shift, [&](Type type, const ValueRows& to) {
    launch_dequantize_ggml(type, c.type, bytes.as<uint8_t>(), n == 0 ? 0 : rows, columns, to,
                           nullptr);
  });
}

/// Groups of 32 are 128 to a block of threads.
TEST(CudaDequantize, BlocksOfGgml) {
  const std::vector<int64_t> numbers_of_groups = {0, 1, 2, 3, 7, 9, 127, 128, 129, 255, 257, 300};
  for_each("format", ggml_cases(), [&](const GgmlCase& c) {
    for_each("groups", numbers_of_groups, [&](int64_t groups) {
      const int64_t of_block = c.numbers / 32, blocks = (groups + of_block - 1) / of_block;
      for (const int64_t shift : kShifts) expect_ggml(c, random_blocks(c, blocks, 17), shift);
    });
  });
}

TEST(CudaDequantize, BlocksOfGgmlInRowsFurtherApartThanLong) {
  for_each("format", ggml_cases(), [&](const GgmlCase& c) {
    for_each("gap", kGaps, [&](int64_t gap) {
      for (const int64_t of_row : {1, 3})
        expect_ggml(c, random_blocks(c, 7 * of_row, 17), 0, 7, gap);
    });
  });
}

/// Blocks at each address, from one on: they are copied in words of 16 bytes.
TEST(CudaDequantize, BlocksOfGgmlAtAnyAddress) {
  for_each("format", ggml_cases(), [&](const GgmlCase& c) {
    for (int64_t shift = 0; shift < 16; ++shift) {
      SCOPED_TRACE(shift);
      for (const int64_t blocks : {1, 2, 5}) {
        const std::vector<uint8_t> bytes = random_blocks(c, blocks, 17);
        const std::vector<float> expected = values_of(c, bytes);
        const Memory from = Memory::raw(bytes, shift);
        const Memory y = Memory::nans(Type::kBFloat16, static_cast<int64_t>(expected.size()));
        const auto n = static_cast<int64_t>(expected.size());
        launch_dequantize_ggml(Type::kBFloat16, c.type, from.as<uint8_t>(), 1, n, {y.data(), n},
                               nullptr);
        EXPECT_TRUE(same(Type::kBFloat16, y, rounded(Type::kBFloat16, expected)));
      }
    }
  });
}

TEST(CudaDequantize, BlocksOfGgmlWithScalesThatAreNaN) {
  for_each("format", ggml_cases(), [&](const GgmlCase& c) {
    for (const uint8_t high : {0x7c, 0xfc, 0x7e}) {
      std::vector<uint8_t> blocks = random_blocks(c, 3, 18);
      uint8_t* second = blocks.data() + c.bytes;
      for (const int half : c.halves) second[half] = 0, second[half + 1] = high;
      if (c.type == weights::GgmlType::kMxfp4) second[0] = 255, blocks[0] = 0;
      expect_ggml(c, blocks, 0);
    }
  });
}

// ---- Rounded to e4m3.

SFTRUN_FOR_TYPES(CudaRoundToE4m3);

struct Rounded {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};
Rounded by_cpu(const std::vector<float>& x, const float* gains, const Shape& shape) {
  Rounded all{std::vector<uint8_t>(x.size()), {}};
  for (int64_t row = 0; row < shape.rows; ++row) {
    std::vector<float> gained(x.begin() + row * shape.columns,
                              x.begin() + (row + 1) * shape.columns);
    for (int64_t i = 0; i < shape.columns && gains != nullptr; ++i)
      gained[static_cast<size_t>(i)] *= gains[i];
    all.scales.push_back(cpu_kernels().quantize_row_e4m3(gained.data(), shape.columns,
                                                         all.codes.data() + row * shape.columns));
  }
  return all;
}

/// What the CPU multiplies in place of codes: their values.
void expect_rows_of_cpu(Type type, const Memory& x, const float* gains, const Shape& shape,
                        const Rounded& expected) {
  if (type == Type::kFloat16) return;
  const int64_t n = shape.rows * shape.columns;
  const Memory values = Memory::nans(type, n);
  for (int64_t row = 0, at = 0; row < shape.rows; ++row, at += shape.columns) {
    const float scale =
        type == Type::kFloat32
            ? cpu_kernels().f32.round_row_e4m3(x.as<float>() + at, gains, shape.columns,
                                               values.as<float>() + at)
            : cpu_kernels().bf16.round_row_e4m3(x.as<uint16_t>() + at, gains, shape.columns,
                                                values.as<uint16_t>() + at);
    EXPECT_EQ(scale, expected.scales[static_cast<size_t>(row)]);
  }
  std::vector<float> of_codes;
  for (const uint8_t code : expected.codes) of_codes.push_back(e4m3(code));
  EXPECT_TRUE(same(type, values, of_codes));
}

/// Codes for NaN may differ in their sign.
bool same_codes(std::vector<uint8_t> a, std::vector<uint8_t> b) {
  for (std::vector<uint8_t>* codes : {&a, &b})
    for (uint8_t& code : *codes) code = (code & 0x7f) == 0x7f ? 0x7f : code;
  return a == b;
}

/// Of each operand.
struct Shifts {
  int64_t x = 0, gains = 0, codes = 0, scales = 0;
};
constexpr Shifts all_by(int64_t shift) {
  return {shift, shift, shift, shift};
}

void expect_rounded(Type type, const std::vector<float>& values, const Shape& shape,
                    bool with_gains, const Shifts& shifts) {
  const Memory x = Memory::of(type, values, shifts.x),
               gain = Memory::raw(normal(shape.columns, 20), shifts.gains);
  const float* gains = with_gains ? gain.as<float>() : nullptr;
  const Rounded expected = by_cpu(floats(type, x), gains, shape);
  expect_rows_of_cpu(type, x, gains, shape, expected);
  const auto out = in_every_order([&] {
    std::vector<Memory> made{Memory::untouched<uint8_t>(shape.rows * shape.columns, shifts.codes),
                             Memory::nans(Type::kFloat32, shape.rows, shifts.scales)};
    launch_round_to_e4m3(type, x.data(), gains, made[0].as<uint8_t>(), made[1].as<float>(),
                         shape.rows, shape.columns, nullptr);
    return made;
  });
  EXPECT_TRUE(same_codes(out[0].to<uint8_t>(), expected.codes));
  EXPECT_TRUE(same(Type::kFloat32, out[1], expected.scales));
}

TEST_P(CudaRoundToE4m3, IsTheCpusToTheBit) {
  constexpr Shape kRows[] = {{0, 8},    {1, 1},    {2, 7},    {3, 8},    {65, 9},
                             {65, 16},  {2, 31},   {1, 32},   {3, 33},   {1, 255},
                             {2, 256},  {1, 257},  {3, 576},  {2, 1000}, {2, 2048},
                             {2, 2056}, {1, 4095}, {1, 4096}, {1, 4097}, {2, 4104}};
  for_each("shape", kRows, [&](const Shape& shape) {
    for_each("shift", kShifts, [&](int64_t shift) {
      const auto values = normal(shape.rows * shape.columns, 19, 5);
      expect_rounded(type(), values, shape, false, all_by(shift));
      expect_rounded(type(), values, shape, true, all_by(shift));
    });
  });
}

/// Whichever operand is not aligned, words of 16 bytes are read only of what is.
TEST_P(CudaRoundToE4m3, EachAtAnyAddress) {
  constexpr Shifts kOne[] = {{.x = 1}, {.gains = 1}, {.codes = 1}, {.codes = 8}, {.scales = 1}};
  const Shape shape{3, 72};
  for (const Shifts& shifts : kOne)
    for (const bool with_gains : {false, true})
      expect_rounded(type(), normal(shape.rows * shape.columns, 19, 5), shape, with_gains, shifts);
}

void expect_any_numbers(Type type, int64_t columns) {
  const Shape shape{9, columns};
  const auto n = static_cast<size_t>(columns);
  std::vector<float> values = normal(shape.rows * shape.columns, 21);
  const float infinity = std::numeric_limits<float>::infinity();
  const float scales[] = {0, -0.0F, 1e-42F, 1e-36F, 1e-20F, 1e30F, 1, 1, 1};
  for (size_t i = 0; i < values.size(); ++i) values[i] *= scales[i / n];
  values[6 * n + 3] = std::nanf(""), values[8 * n - 1] = -infinity, values[8 * n] = 448;
  expect_rounded(type, values, shape, false, {});
  expect_rounded(type, values, shape, true, {});
}
TEST_P(CudaRoundToE4m3, SmallLargeAndNaN) {
  for (const int64_t columns : {70, 72}) expect_any_numbers(type(), columns);
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
