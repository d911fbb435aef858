#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "../../src/kernels/cuda/matrix_views.h"
#include "sftrun/kernels/grouped_matmul.h"
#include "sftrun/kernels/ops.h"
#include "support/tensors.h"

// Integers of 4 bits in groups, against codes minus zero points times scales that are spread over columns
// with ATen's operations.
namespace sftrun::kernels {
namespace {

using test::close;
using test::normal;

struct GroupedCase {
  int64_t rows, columns, group;  ///< group: columns; 0: each column names one of three groups
};

at::Tensor random_codes(at::IntArrayRef shape, uint64_t seed) {
  return (normal(shape, seed).abs() * 1000).to(at::kLong).remainder(16).to(at::kByte);
}

/// Scales of groups differ up to a hundredfold; some are negative.
QuantizedMatrix random_groups(const GroupedCase& c, uint64_t seed) {
  QuantizedMatrix matrix{.format = QuantFormat::kInt4Groups,
                         .rows = c.rows,
                         .columns = c.columns,
                         .block_size = c.group > 0 ? c.group : c.columns};
  const at::Tensor codes = random_codes({c.rows, (c.columns + 1) / 2, 2}, seed);
  matrix.packed = (codes.select(2, 0) * 16 + codes.select(2, 1)).flatten();
  constexpr int64_t kNamed = 3;
  const int64_t groups = c.group > 0 ? matrix.blocks_of_row() : kNamed;
  matrix.absmax = (normal({c.rows * groups}, seed + 1).exp() - 0.2) * 1e-2;
  matrix.zeros = random_codes({c.rows * groups}, seed + 2);
  if (c.group == 0)
    matrix.column_groups = random_codes({c.columns}, seed + 3).remainder(kNamed).to(at::kInt);
  return matrix;
}

/// [rows, columns] fp32
at::Tensor values_of_groups(const QuantizedMatrix& matrix) {
  const at::Tensor bytes = matrix.packed.view({matrix.rows, -1}).to(at::kInt),
                   codes = at::stack({at::bitwise_right_shift(bytes, 4), bytes.bitwise_and(15)}, 2)
                               .flatten(1)
                               .narrow(1, 0, matrix.columns),
                   groups = matrix.column_groups.defined()
                                ? matrix.column_groups.to(at::kLong)
                                : at::floor_divide(at::arange(matrix.columns), matrix.block_size),
                   zeros = matrix.zeros.view({matrix.rows, -1}).to(at::kInt),
                   scales = matrix.absmax.view({matrix.rows, -1});
  return (codes - zeros.index_select(1, groups)).to(at::kFloat) * scales.index_select(1, groups);
}

const GroupedCase kGroupedCases[] = {{1, 1, 1},       {3, 40, 32},  {5, 33, 33}, {128, 128, 128},
                                     {96, 160, 64},   {40, 96, 0},  {7, 41, 0},  {70, 300, 128},
                                     {160, 256, 256}, {64, 192, 32}};

std::string told(const GroupedCase& c) {
  return std::to_string(c.rows) + " x " + std::to_string(c.columns) + " in groups of " +
         std::to_string(c.group);
}

TEST(Int4Groups, ValuesAreCodesLessZeroPointsTimesScales) {
  for (const GroupedCase& c : kGroupedCases) {
    SCOPED_TRACE(told(c));
    const QuantizedMatrix matrix = random_groups(c, 3);
    const at::Tensor expected = values_of_groups(matrix);
    EXPECT_TRUE(test::same_bits(dequantize(matrix, at::kFloat), expected));
    EXPECT_TRUE(test::same_bits(dequantize(matrix, at::kBFloat16), expected.to(at::kBFloat16)));
    const int64_t of_names = matrix.column_groups.defined() ? 4 * c.columns : 0;
    EXPECT_EQ(matrix.nbytes(), static_cast<uint64_t>(c.rows * ((c.columns + 1) / 2) +
                                                     5 * matrix.absmax.numel() + of_names));
    const at::Tensor chosen = at::tensor({c.rows - 1, int64_t{0}, c.rows / 2}, at::kLong);
    EXPECT_TRUE(
        at::equal(dequantize_rows(matrix, chosen, at::kFloat), expected.index_select(0, chosen)));
    const int64_t first = c.rows / 3, count = c.rows - first;
    EXPECT_TRUE(test::same_bits(dequantize(matrix.narrow(first, count), at::kFloat),
                                expected.narrow(0, first, count).contiguous()));
  }
}

/// Of rows anywhere. Of columns at multiples of 32 where they are in groups: a part of a group is smaller
/// groups.
TEST(Int4Groups, PartsHaveTheValuesOfTheWhole) {
  using Ranges = std::vector<IndexRange>;
  struct Part {
    int64_t group, dim;
    Ranges ranges;
    int64_t of_part;  ///< block_size
  };
  const std::vector<Part> parts = {
      {128, 0, {{100, 57}}, 128},          {128, 0, {{1, 5}, {130, 3}, {199, 1}}, 128},
      {128, 1, {{0, 128}}, 128},           {128, 1, {{64, 192}}, 64},
      {128, 1, {{0, 160}, {320, 32}}, 32}, {32, 1, {{96, 64}}, 32},
      {352, 1, {{34, 100}}, 100},          {352, 1, {{0, 2}, {350, 2}}, 4},
      {0, 1, {{34, 100}, {200, 50}}, 150}, {0, 0, {{0, 7}, {50, 3}}, 352}};
  for (const Part& p : parts) {
    SCOPED_TRACE("groups of " + std::to_string(p.group) + ", " + std::to_string(p.dim) + " from " +
                 std::to_string(p.ranges.front().begin));
    const QuantizedMatrix matrix = random_groups({200, 352, p.group}, 5);
    const at::Tensor whole = values_of_groups(matrix);
    const TensorSlice slice{.dim = p.dim, .whole_size = whole.size(p.dim), .ranges = p.ranges};
    ASSERT_TRUE(matrix.has_part(slice));
    const QuantizedMatrix part = matrix.part(slice);
    EXPECT_EQ(part.block_size, p.of_part);
    std::vector<at::Tensor> expected;
    for (const IndexRange& range : p.ranges)
      expected.push_back(whole.narrow(p.dim, range.begin, range.count));
    const at::Tensor values = at::cat(expected, p.dim);
    EXPECT_TRUE(test::same_bits(dequantize(part, at::kFloat), values));
    const at::Tensor x = normal({3, part.columns}, 6);
    EXPECT_TRUE(close(matmul_sum({{x, part, true}}), at::mm(x, values.t()), 1e-5));
  }
  const TensorSlice within{.dim = 1, .whole_size = 352, .ranges = {{16, 32}}},
      odd{.dim = 1, .whole_size = 352, .ranges = {{1, 32}}};
  EXPECT_FALSE(random_groups({4, 352, 128}, 7).has_part(within));
  EXPECT_FALSE(random_groups({4, 352, 0}, 7).has_part(odd)) << "two columns share a byte";
}

/// For few rows and many, both ways.
TEST(Int4Groups, ProductsAreThoseOfTheValues) {
  for (const GroupedCase& c : kGroupedCases) {
    const QuantizedMatrix matrix = random_groups(c, 7);
    const at::Tensor values = values_of_groups(matrix).to(at::kDouble);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t tokens : {1, 5, 70}) {
        SCOPED_TRACE(told(c) + ", " + std::to_string(tokens) +
                     (dtype == at::kFloat ? " fp32" : " bf16"));
        const at::Tensor x = normal({tokens, c.columns}, 8, dtype),
                         dy = normal({tokens, c.rows}, 9, dtype);
        const double limit = dtype == at::kFloat ? 1e-5 : 1e-2;
        EXPECT_TRUE(
            close(matmul_sum({{x, matrix, true}}), at::mm(x.to(at::kDouble), values.t()), limit));
        EXPECT_TRUE(close(matmul_sum({{dy, matrix}}), at::mm(dy.to(at::kDouble), values), limit));
      }
    }
  }
}

TEST(Int4Groups, OfExperts) {
  constexpr int64_t kExperts = 3, kRows = 40;
  const QuantizedMatrix all = random_groups({kExperts * kRows, 96, 32}, 11);
  const at::Tensor values = values_of_groups(all).view({kExperts, kRows, 96}),
                   x = normal({90, 96}, 13);
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

/// What the CUDA kernels do to a value, and to eight.
TEST(Int4Groups, CudasValuesAreTheCpus) {
  for (const GroupedCase& c : kGroupedCases) {
    SCOPED_TRACE(told(c));
    const QuantizedMatrix matrix = random_groups(c, 15);
    const at::Tensor values = dequantize(matrix, at::kFloat).flatten();
    const cuda::Int4GroupView view = cuda::int4_group_view(matrix);
    for (int64_t i = 0; i < values.numel(); ++i)
      ASSERT_EQ(view.value(i), values.const_data_ptr<float>()[i]) << i;
    EXPECT_EQ(view.groups_are_whole(), c.columns % 8 == 0 && c.group != 0);
    for (int64_t group = 0; view.groups_are_whole() && group < values.numel() / cuda::kGroup;
         ++group) {
      float of_group[cuda::kGroup];
      view.final_values(view.packed + group * cuda::kGroup / 2, group, of_group);
      for (int64_t i = 0; i < cuda::kGroup; ++i)
        ASSERT_EQ(of_group[i], values.const_data_ptr<float>()[group * cuda::kGroup + i]) << group;
    }
  }
}

/// Of every instruction set the same values as the dequantised row times a token, but for the order of sums.
TEST(Int4Groups, DotsOfEveryInstructionSet) {
  const QuantizedMatrix matrix = random_groups({3, 352, 64}, 17);
  const at::Tensor values = values_of_groups(matrix).to(at::kDouble), x = normal({5, 352}, 18);
  const std::vector<float> table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int64_t groups = matrix.blocks_of_row();
  for (const char* isa : {"generic", "avx2", "avx512"}) {
    const CpuKernels* kernels = cpu_kernels_by_name(isa);
    if (kernels == nullptr) continue;
    at::Tensor out = at::empty({3, 5}), split = at::empty_like(x);
    kernels->dots.split_pairs(x.const_data_ptr<float>(), x.numel(), split.data_ptr<float>());
    for (int64_t row = 0; row < 3; ++row) {
      kernels->dots.dot_4bit({.packed = matrix.packed.const_data_ptr<uint8_t>() + row * 176,
                              .first = 0,
                              .block_size = 64,
                              .table = table.data(),
                              .scales = matrix.absmax.const_data_ptr<float>() + row * groups,
                              .zeros = matrix.zeros.const_data_ptr<uint8_t>() + row * groups},
                             352, split.const_data_ptr<float>(), 5,
                             out.data_ptr<float>() + row * 5);
    }
    EXPECT_TRUE(close(out, at::mm(values, x.to(at::kDouble).t()), 1e-6)) << isa;
  }
}

}  // namespace
}  // namespace sftrun::kernels
