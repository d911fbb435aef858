#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "../../src/kernels/cuda/matrix_views.h"
#include "sftrun/kernels/grouped_matmul.h"
#include "sftrun/kernels/ops.h"
#include "support/tensors.h"

// e4m3 with one scale per block of 128 rows and columns, against codes times scales that are spread
// over rows and columns with ATen's operations.
namespace sftrun::kernels {
namespace {

using test::close;
using test::normal;

/// Of random finite codes; scales of blocks differ up to a hundredfold.
QuantizedMatrix random_fp8_blocks(int64_t rows, int64_t columns, uint64_t seed) {
  QuantizedMatrix matrix{
      .format = QuantFormat::kFp8Blocks, .rows = rows, .columns = columns, .block_size = kFp8Block};
  const at::Tensor codes = (normal({rows, columns}, seed) * 100).clamp(-448, 448);
  matrix.packed = codes.to(at::kFloat8_e4m3fn).view(at::kByte).flatten();
  const int64_t row_blocks = (rows + kFp8Block - 1) / kFp8Block;
  matrix.absmax = normal({row_blocks * matrix.blocks_of_row()}, seed + 1).exp() * 1e-3;
  matrix.block_rows = at::floor_divide(at::arange(rows), kFp8Block).to(at::kInt);
  return matrix;
}

/// [rows, columns] fp32
at::Tensor values_of(const QuantizedMatrix& matrix) {
  const at::Tensor codes = matrix.packed.view({matrix.rows, matrix.columns})
                               .view(at::kFloat8_e4m3fn)
                               .to(at::kFloat),
                   scales = matrix.absmax.view({-1, matrix.blocks_of_row()})
                                .index_select(0, matrix.block_rows)
                                .repeat_interleave(matrix.block_size, 1)
                                .narrow(1, 0, matrix.columns);
  return codes * scales;
}

constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1},     {3, 40},    {128, 128},
                                                   {129, 130}, {160, 300}, {300, 160}};

TEST(Fp8Blocks, ValuesAreCodesTimesTheScalesOfTheirBlocks) {
  for (const auto& [rows, columns] : kShapes) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns));
    const QuantizedMatrix matrix = random_fp8_blocks(rows, columns, 3);
    const at::Tensor expected = values_of(matrix);
    EXPECT_TRUE(test::same_bits(dequantize(matrix, at::kFloat), expected));
    EXPECT_TRUE(test::same_bits(dequantize(matrix, at::kBFloat16), expected.to(at::kBFloat16)));
    EXPECT_EQ(matrix.nbytes(),
              static_cast<uint64_t>(rows * columns + 4 * rows + 4 * matrix.absmax.numel()));
    const at::Tensor chosen = at::tensor({rows - 1, int64_t{0}, rows / 2}, at::kLong);
    EXPECT_TRUE(
        at::equal(dequantize_rows(matrix, chosen, at::kFloat), expected.index_select(0, chosen)));
  }
}

/// Of rows anywhere. Of columns at multiples of 32: parts of a block have smaller blocks.
TEST(Fp8Blocks, PartsWithinBlocksHaveTheValuesOfTheWhole) {
  const QuantizedMatrix matrix = random_fp8_blocks(300, 352, 5);
  const at::Tensor whole = values_of(matrix);
  EXPECT_EQ(matrix.values_per_block(), kFp8LeastBlock);
  using Ranges = std::vector<IndexRange>;
  for (const auto& [dim, ranges, block_size] :
       {std::tuple<int64_t, Ranges, int64_t>{0, {{100, 57}}, 128},
        {0, {{1, 5}, {130, 3}, {299, 1}}, 128},
        {1, {{0, 128}}, 128},
        {1, {{64, 192}}, 64},
        {1, {{96, 64}}, 32},
        {1, {{0, 160}, {320, 32}}, 32},
        {1, {{128, 224}}, 32}}) {
    SCOPED_TRACE(std::to_string(dim) + " from " + std::to_string(ranges.front().begin));
    const TensorSlice slice{.dim = dim, .whole_size = whole.size(dim), .ranges = ranges};
    ASSERT_TRUE(matrix.has_part(slice));
    const QuantizedMatrix part = matrix.part(slice);
    EXPECT_EQ(part.block_size, block_size);
    std::vector<at::Tensor> expected;
    for (const IndexRange& range : ranges)
      expected.push_back(whole.narrow(dim, range.begin, range.count));
    const at::Tensor values = at::cat(expected, dim);
    EXPECT_TRUE(test::same_bits(dequantize(part, at::kFloat), values));
    EXPECT_TRUE(test::same_bits(dequantize(part.narrow(1, 2), at::kFloat),
                                values.narrow(0, 1, 2).contiguous()));
    const at::Tensor x = normal({3, part.columns}, 6);
    EXPECT_TRUE(close(matmul_sum({{x, part, true}}), at::mm(x, values.t()), 1e-5));
  }
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{16, 32}, {0, 100}})
    EXPECT_FALSE(matrix.has_part({.dim = 1, .whole_size = 352, .ranges = {{begin, count}}}));
}

/// Activations are not rounded: the products of the values, for few rows and many, both ways.
TEST(Fp8Blocks, ProductsAreThoseOfTheValues) {
  for (const auto& [rows, columns] : kShapes) {
    const QuantizedMatrix matrix = random_fp8_blocks(rows, columns, 7);
    const at::Tensor values = values_of(matrix).to(at::kDouble);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t tokens : {1, 3, 9, 70, 200}) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns) + ", " +
                     std::to_string(tokens) + (dtype == at::kFloat ? " fp32" : " bf16"));
        const at::Tensor x = normal({tokens, columns}, 8, dtype),
                         dy = normal({tokens, rows}, 9, dtype);
        const double limit = dtype == at::kFloat ? 1e-5 : 1e-2;
        EXPECT_TRUE(
            close(matmul_sum({{x, matrix, true}}), at::mm(x.to(at::kDouble), values.t()), limit));
        EXPECT_TRUE(close(matmul_sum({{dy, matrix}}), at::mm(dy.to(at::kDouble), values), limit));
      }
    }
  }
}

/// Each expert's rows have blocks of their own, also where they are no multiple of 128.
TEST(Fp8Blocks, OfExperts) {
  constexpr int64_t kExperts = 3, kRows = 160;
  QuantizedMatrix all = random_fp8_blocks(kExperts * kRows, 96, 11);
  all.absmax = normal({kExperts * 2}, 12).exp();
  std::vector<at::Tensor> block_rows;
  for (int64_t e = 0; e < kExperts; ++e)
    block_rows.push_back(at::floor_divide(at::arange(kRows), kFp8Block) + 2 * e);
  all.block_rows = at::cat(block_rows).to(at::kInt);
  const at::Tensor values = values_of(all).view({kExperts, kRows, 96}), x = normal({90, 96}, 13);
  const at::Tensor chosen = at::arange(90).remainder(kExperts).view({90, 1});
  const Routes routes = routes_of(chosen, kExperts);
  const at::Tensor sorted = x.index_select(0, routes.tokens);
  const at::Tensor y = grouped_matmul(sorted, {all, kExperts}, true, routes);
  for (int64_t e = 0; e < kExperts; ++e) {
    const int64_t begin = routes.offsets[static_cast<size_t>(e)],
                  count = routes.offsets[static_cast<size_t>(e) + 1] - begin;
    EXPECT_TRUE(close(y.narrow(0, begin, count),
                      at::mm(sorted.narrow(0, begin, count), values[e].t()), 1e-5));
  }
}

/// What the CUDA kernels do to a value, and to a group of eight.
TEST(Fp8Blocks, CudasValuesAreTheCpus) {
  const QuantizedMatrix whole = random_fp8_blocks(150, 256, 15);
  for (const QuantizedMatrix& matrix :
       {whole, whole.part({.dim = 1, .whole_size = 256, .ranges = {{96, 96}}}),
        random_fp8_blocks(5, 33, 16)}) {
    const at::Tensor values = dequantize(matrix, at::kFloat).flatten();
    const cuda::Fp8BlockView view = cuda::fp8_block_view(matrix);
    for (int64_t i = 0; i < values.numel(); ++i)
      ASSERT_EQ(view.value(i), values.const_data_ptr<float>()[i]) << i;
    for (int64_t group = 0; view.groups_are_whole() && group < values.numel() / cuda::kGroup;
         ++group) {
      float of_group[cuda::kGroup];
      view.final_values(view.codes + group * cuda::kGroup, group, of_group);
      for (int64_t i = 0; i < cuda::kGroup; ++i)
        ASSERT_EQ(of_group[i], values.const_data_ptr<float>()[group * cuda::kGroup + i]) << group;
    }
  }
}

/// Of every instruction set the same bits as the dequantised row times a token, but for the order of sums.
TEST(Fp8Blocks, DotsOfEveryInstructionSet) {
  const QuantizedMatrix matrix = random_fp8_blocks(3, 352, 17);
  const at::Tensor values = values_of(matrix).to(at::kDouble), x = normal({5, 352}, 18);
  for (const char* isa : {"generic", "avx2", "avx512"}) {
    const CpuKernels* kernels = cpu_kernels_by_name(isa);
    if (kernels == nullptr) continue;
    at::Tensor out = at::empty({3, 5});
    for (int64_t row = 0; row < 3; ++row) {
      kernels->dots.dot_8bit({EightBits::kE4m3, matrix.packed.const_data_ptr<uint8_t>() + row * 352,
                              matrix.absmax.const_data_ptr<float>(), kFp8Block},
                             352, x.const_data_ptr<float>(), 5, out.data_ptr<float>() + row * 5);
    }
    EXPECT_TRUE(close(out, at::mm(values, x.to(at::kDouble).t()), 1e-6)) << isa;
  }
}

}  // namespace
}  // namespace sftrun::kernels
