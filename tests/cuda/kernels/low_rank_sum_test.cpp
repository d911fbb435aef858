#include <cmath>

#include "low_rank/low_rank_sum_launch.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

SFTRUN_FOR_TYPES_OF(CudaLowRankSum, kSixteenBits);

/// Gaps are elements between rows.
struct Shape {
  int64_t rows, columns, rank;
  bool is_transposed = false, has_base = false;
  int64_t y_gap = 0, base_gap = 0, low_gap = 0, factor_gap = 0;

  int64_t factor_rows() const { return is_transposed ? columns : rank; }
  int64_t factor_columns() const { return is_transposed ? rank : columns; }
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.rows << " x " << shape.columns << ", rank " << shape.rank
       << (shape.is_transposed ? ", transposed" : "") << (shape.has_base ? ", with a base" : "")
       << ", gaps " << shape.y_gap << ", " << shape.base_gap << ", " << shape.low_gap << ", "
       << shape.factor_gap;
}

struct Operands {
  Memory y, base, low, factor;
};
Operands operands_of(Type type, const Shape& shape) {
  return {Memory::of(type, rows_with_gaps(shape.rows, shape.columns, shape.y_gap, 1)),
          Memory::of(type, rows_with_gaps(shape.has_base ? shape.rows : 0, shape.columns,
                                          shape.base_gap, 2)),
          Memory::of(type, rows_with_gaps(shape.rows, shape.rank, shape.low_gap, 3)),
          Memory::of(type, rows_with_gaps(shape.factor_rows(), shape.factor_columns(),
                                          shape.factor_gap, 4))};
}

/// The gaps of y stay as they were.
std::vector<Exact> expected_of(Type type, const Shape& shape, const Operands& in) {
  const auto y = floats(type, in.y), base = floats(type, in.base), low = floats(type, in.low),
             factor = floats(type, in.factor);
  const int64_t factor_stride = shape.factor_columns() + shape.factor_gap;
  std::vector<Exact> out;
  for (const float value : y) out.push_back({value, std::fabs(value)});
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t column = 0; column < shape.columns; ++column) {
      Exact& sum = out[static_cast<size_t>(row * (shape.columns + shape.y_gap) + column)];
      const auto add = [&](double term) { sum.value += term, sum.size += std::fabs(term); };
      if (shape.has_base)
        add(base[static_cast<size_t>(row * (shape.columns + shape.base_gap) + column)]);
      for (int64_t k = 0; k < shape.rank; ++k) {
        const int64_t at =
            shape.is_transposed ? column * factor_stride + k : k * factor_stride + column;
        add(double{low[static_cast<size_t>(row * (shape.rank + shape.low_gap) + k)]} *
            factor[static_cast<size_t>(at)]);
      }
    }
  }
  return out;
}

Memory expect_sum(Type type, const Shape& shape, const Operands& in) {
  SCOPED_TRACE(testing::PrintToString(shape));
  std::vector<Memory> made = in_every_order([&] {
    std::vector<Memory> out;
    out.push_back(in.y);
    launch_low_rank_sum(type,
                        {.y = out[0].data(),
                         .base = shape.has_base ? in.base.data() : nullptr,
                         .low = in.low.data(),
                         .factor = in.factor.data(),
                         .rows = shape.rows,
                         .columns = shape.columns,
                         .rank = shape.rank,
                         .y_stride = shape.columns + shape.y_gap,
                         .base_stride = shape.columns + shape.base_gap,
                         .low_stride = shape.rank + shape.low_gap,
                         .factor_stride = shape.factor_columns() + shape.factor_gap,
                         .is_transposed = shape.is_transposed},
                        nullptr);
    return out;
  });
  EXPECT_TRUE(
      close(type, made[0], expected_of(type, shape, in), static_cast<double>(shape.rank) + 2));
  return std::move(made[0]);
}
void expect_sum(Type type, const Shape& shape) {
  expect_sum(type, shape, operands_of(type, shape));
}

constexpr int64_t kRanks[] = {8, 16, 24, 32, 48, 56, 64};
constexpr int64_t kColumns[] = {8, 64, 120, 128, 136, 264};
constexpr int64_t kRows[] = {1, 15, 31, 32, 33, 130, 290};

TEST_P(CudaLowRankSum, OfEachShape) {
  for (size_t rank = 0; rank < std::size(kRanks); ++rank) {
    for (size_t columns = 0; columns < std::size(kColumns); ++columns) {
      const size_t sum = rank + columns;
      // Some of them: the code is bf16's.
      if (type() == Type::kFloat16 && sum % 3 != 0) continue;
      expect_sum(type(), {kRows[(sum + rank) % std::size(kRows)], kColumns[columns], kRanks[rank],
                          sum % 2 == 0, (rank + columns / 2) % 3 == 0});
      if (HasFailure()) return;
    }
  }
}

TEST_P(CudaLowRankSum, WithGapsBetweenRows) {
  constexpr Shape kShapes[] = {{17, 24, 16, false, false, 8},
                               {17, 24, 16, true, true, 0, 16},
                               {66, 136, 24, false, true, 8, 0, 8, 16},
                               {66, 136, 48, true, true, 48, 8, 0, 8},
                               {18, 40, 8, true, false, 0, 0, 40, 56}};
  for_each("shape", kShapes, [&](const Shape& shape) { expect_sum(type(), shape); });
}

TEST_P(CudaLowRankSum, OfNothing) {
  expect_sum(type(), {0, 16, 8});
  expect_sum(type(), {16, 0, 8, true, true});
  expect_sum(type(), {16, 16, 0, false, true});
}

/// NaN stays in its row of `low`, in its column of the factor, in its place of y and base.
TEST_P(CudaLowRankSum, NanStaysWhereItIs) {
  const Shape shape{66, 136, 24, true, true};
  const Operands numbers = operands_of(type(), shape);
  std::vector<float> y = floats(type(), numbers.y), base = floats(type(), numbers.base),
                     low = floats(type(), numbers.low), factor = floats(type(), numbers.factor);
  y[3] = base[4] = low[65 * 24 + 23] = factor[135 * 24 + 1] = std::nanf("");
  const Operands in{Memory::of(type(), y), Memory::of(type(), base), Memory::of(type(), low),
                    Memory::of(type(), factor)};
  int64_t nans = 0;
  for (const float value : floats(type(), expect_sum(type(), shape, in)))
    nans += std::isnan(value) ? 1 : 0;
  EXPECT_EQ(nans, shape.columns + shape.rows - 1 + 2);
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
