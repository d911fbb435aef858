#include <cmath>

#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

constexpr Type kSixteenBits[] = {Type::kBFloat16, Type::kFloat16};
class CudaLowRank : public ForTypes {};
INSTANTIATE_TEST_SUITE_P(Types, CudaLowRank, testing::ValuesIn(kSixteenBits),
                         [](const auto& of_type) { return std::string(name_of(of_type.param)); });

/// Gaps are elements between rows.
struct Shape {
  int64_t rows, columns, rank;
  bool is_transposed = false, is_copied = false;
  int64_t x_gap = 0, factor_gap = 0, out_gap = 0;

  int64_t factor_rows() const { return is_transposed ? rank : columns; }
  int64_t factor_columns() const { return is_transposed ? columns : rank; }
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.rows << " x " << shape.columns << " (+ " << shape.x_gap << "), rank " << shape.rank
       << (shape.is_transposed ? ", transposed" : "") << " (+ " << shape.factor_gap << "), out + "
       << shape.out_gap << (shape.is_copied ? ", copied" : "");
}

/// NaN between the rows; the last row has none behind it.
std::vector<float> rows_of(int64_t rows, int64_t columns, int64_t gap, uint64_t seed) {
  const int64_t stride = columns + gap;
  std::vector<float> values = normal(rows == 0 ? 0 : rows * stride - gap, seed);
  for (size_t i = 0; i < values.size(); ++i)
    if (static_cast<int64_t>(i) % stride >= columns) values[i] = std::nanf("");
  return values;
}

struct Operands {
  Memory x, factor;
};
Operands operands_of(Type type, const Shape& shape) {
  return {
      Memory::of(type, rows_of(shape.rows, shape.columns, shape.x_gap, 1)),
      Memory::of(type, rows_of(shape.factor_rows(), shape.factor_columns(), shape.factor_gap, 2))};
}

std::vector<Exact> expected_of(Type type, const Shape& shape, const Operands& in) {
  const auto x = floats(type, in.x), factor = floats(type, in.factor);
  const int64_t x_stride = shape.columns + shape.x_gap,
                factor_stride = shape.factor_columns() + shape.factor_gap;
  std::vector<Exact> out(static_cast<size_t>(shape.rows * shape.rank));
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t rank = 0; rank < shape.rank; ++rank) {
      Exact& sum = out[static_cast<size_t>(row * shape.rank + rank)];
      for (int64_t k = 0; k < shape.columns; ++k) {
        const int64_t at =
            shape.is_transposed ? rank * factor_stride + k : k * factor_stride + rank;
        const double term =
            double{x[static_cast<size_t>(row * x_stride + k)]} * factor[static_cast<size_t>(at)];
        sum.value += term, sum.size += std::fabs(term);
      }
    }
  }
  return out;
}

/// The result without the gaps, which must be as they were.
Memory without_gaps(Type type, const Shape& shape, const Memory& out) {
  const std::vector<float> all = floats(type, out);
  std::vector<float> values;
  for (size_t i = 0; i < all.size(); ++i) {
    if (static_cast<int64_t>(i) % (shape.rank + shape.out_gap) < shape.rank)
      values.push_back(all[i]);
    else
      EXPECT_TRUE(std::isnan(all[i])) << "written between rows, at " << i;
  }
  return Memory::of(type, values);
}

Memory expect_product(Type type, const Shape& shape, const Operands& in) {
  SCOPED_TRACE(testing::PrintToString(shape));
  const std::vector<Memory> made = in_every_order([&] {
    std::vector<Memory> out;
    const int64_t stride = shape.rank + shape.out_gap;
    out.push_back(Memory::nans(type, shape.rows == 0 ? 0 : shape.rows * stride - shape.out_gap));
    out.push_back(Memory::nans(type, shape.is_copied ? shape.rows * shape.rank : 0));
    launch_low_rank(type,
                    {.x = in.x.data(),
                     .factor = in.factor.data(),
                     .out = out[0].data(),
                     .copy = shape.is_copied ? out[1].data() : nullptr,
                     .rows = shape.rows,
                     .columns = shape.columns,
                     .rank = shape.rank,
                     .x_stride = shape.columns + shape.x_gap,
                     .factor_stride = shape.factor_columns() + shape.factor_gap,
                     .out_stride = stride,
                     .is_transposed = shape.is_transposed},
                    nullptr);
    return out;
  });
  Memory out = without_gaps(type, shape, made[0]);
  EXPECT_TRUE(
      close(type, out, expected_of(type, shape, in), static_cast<double>(shape.columns) + 1));
  EXPECT_TRUE(!shape.is_copied || made[1] == out) << "the copy";
  return out;
}
Memory expect_product(Type type, const Shape& shape) {
  return expect_product(type, shape, operands_of(type, shape));
}

constexpr int64_t kRanks[] = {8, 16, 24, 32, 40, 48, 56, 64};
constexpr int64_t kColumns[] = {8, 16, 120, 128, 136, 264};
constexpr int64_t kRows[] = {1, 15, 16, 17, 40};

TEST_P(CudaLowRank, OfEachShape) {
  for (size_t rank = 0; rank < std::size(kRanks); ++rank) {
    for (size_t columns = 0; columns < std::size(kColumns); ++columns) {
      const size_t sum = rank + columns;
      // Half of them: the code is bf16's.
      if (type() == Type::kFloat16 && (rank + columns / 2) % 2 != 0) continue;
      expect_product(type(), {kRows[sum % std::size(kRows)], kColumns[columns], kRanks[rank],
                              sum % 2 == 0, (rank + columns / 2) % 3 == 0});
      if (HasFailure()) return;
    }
  }
}

TEST_P(CudaLowRank, WithGapsBetweenRows) {
  constexpr Shape kShapes[] = {
      {17, 24, 16, false, false, 8},       {17, 24, 16, true, true, 0, 16},
      {33, 136, 24, false, true, 0, 8, 8}, {33, 136, 48, true, true, 48, 48, 136},
      {18, 40, 8, true, false, 0, 0, 40},  {18, 40, 64, false, true, 64, 0, 40}};
  for_each("shape", kShapes, [&](const Shape& shape) { expect_product(type(), shape); });
}

/// More stages than are kept under way, several times.
TEST_P(CudaLowRank, OfManyColumns) {
  for (const int64_t rank : {8, 48, 64}) {
    expect_product(type(), {16, 2184, rank, true, false});
    expect_product(type(), {16, 2184, rank, false, true});
  }
}

/// Of which a block has more.
TEST_P(CudaLowRank, OfManyRows) {
  expect_product(type(), {3085, 24, 16, type() == Type::kBFloat16, true});
  if (type() == Type::kBFloat16) expect_product(type(), {3073, 136, 48});
}

/// What a row's sums are does not depend on the other rows.
TEST_P(CudaLowRank, EachRowAsIfAlone) {
  const Shape shape{40, 136, 24, true};
  const Operands in = operands_of(type(), shape);
  const std::vector<float> x = floats(type(), in.x);
  const Memory out = expect_product(type(), shape, in);
  const Operands last{Memory::of(type(), {x.end() - shape.columns, x.end()}), Memory(in.factor)};
  const Memory alone = expect_product(type(), {1, shape.columns, shape.rank, true}, last);
  EXPECT_EQ(std::memcmp(alone.data(), out.as<char>() + out.bytes() - alone.bytes(), alone.bytes()),
            0);
}

TEST_P(CudaLowRank, OfNothing) {
  expect_product(type(), {0, 16, 8});
  expect_product(type(), {16, 0, 8, true, true});
  expect_product(type(), {16, 16, 0});
}

/// NaN and infinity stay in their row, or in their column of the factor.
TEST_P(CudaLowRank, NanStaysWhereItIs) {
  const Shape shape{17, 136, 24, false, true};
  const Operands numbers = operands_of(type(), shape);
  std::vector<float> x = floats(type(), numbers.x), factor = floats(type(), numbers.factor);
  x[16 * 136 + 135] = std::nanf("");
  factor[3 * 24 + 7] = INFINITY;
  const Operands in{Memory::of(type(), x), Memory::of(type(), factor)};
  int64_t nans = 0, infinities = 0;
  for (const float value : floats(type(), expect_product(type(), shape, in))) {
    nans += std::isnan(value) ? 1 : 0;
    infinities += std::isinf(value) ? 1 : 0;
  }
  EXPECT_EQ(nans, shape.rank);
  EXPECT_EQ(infinities, shape.rows - 1);
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
