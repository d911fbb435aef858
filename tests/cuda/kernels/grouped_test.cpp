#include <cmath>

#include "experts/grouped_matmul_launch.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

/// How many rows each expert has.
struct Case {
  std::vector<int32_t> rows;
  int64_t inner, columns;
};
void PrintTo(const Case& c, std::ostream* out) {
  for (const int32_t rows : c.rows) *out << rows << " ";
  *out << "rows, " << c.inner << " by " << c.columns;
}
/// No rows, one, all; rows, sums and columns of less than a tile, of one, and of one more.
const std::vector<Case> kCases = {{{0, 0, 0}, 8, 8},    {{1}, 1, 1},
                                  {{0, 2, 0, 1}, 7, 9}, {{3, 0, 0}, 8, 31},
                                  {{0, 0, 65}, 33, 65}, {{1, 1, 1, 1, 1}, 16, 64},
                                  {{64, 0, 1}, 31, 33}, {{2, 63, 0, 130}, 32, 17},
                                  {{5, 9}, 96, 128},    {{3, 1}, 255, 8}};

SFTRUN_FOR_TYPES(CudaGrouped);

std::vector<int32_t> ends_of(const Case& c) {
  std::vector<int32_t> ends;
  for (const int32_t rows : c.rows) ends.push_back((ends.empty() ? 0 : ends.back()) + rows);
  return ends;
}
int64_t experts_of(const Case& c) {
  return static_cast<int64_t>(c.rows.size());
}

/// Calls body(expert, row) for each row.
template <typename Body>
void for_rows(const Case& c, const Body& body) {
  int64_t row = 0;
  for (size_t expert = 0; expert < c.rows.size(); ++expert)
    for (int32_t i = 0; i < c.rows[expert]; ++i) body(static_cast<int64_t>(expert), row++);
}

void add(Exact& sum, double term) {
  sum.value += term, sum.size += std::fabs(term);
}

std::vector<Exact> products(const Case& c, const std::vector<float>& x, const std::vector<float>& w,
                            bool transposed) {
  std::vector<Exact> y;
  for_rows(c, [&](int64_t expert, int64_t row) {
    for (int64_t column = 0; column < c.columns; ++column) {
      Exact sum{0, 0};
      for (int64_t i = 0; i < c.inner; ++i) {
        const int64_t at = transposed ? column * c.inner + i : i * c.columns + column;
        add(sum, double{x[static_cast<size_t>(row * c.inner + i)]} *
                     w[static_cast<size_t>(expert * c.inner * c.columns + at)]);
      }
      y.push_back(sum);
    }
  });
  return y;
}

void expect_products(Type type, const Case& c, bool transposed, int64_t shift) {
  const std::vector<int32_t> ends = ends_of(c);
  const int64_t rows = ends.back();
  const Memory x = Memory::of(type, normal(rows * c.inner, 1), shift),
               w = Memory::of(type, normal(experts_of(c) * c.inner * c.columns, 2), shift),
               of_ends = Memory::raw(ends, shift);
  const auto out = in_every_order([&] {
    std::vector<Memory> made{Memory::nans(type, rows * c.columns, shift)};
    launch_grouped_matmul(type, x.data(), w.data(), of_ends.as<int32_t>(), made[0].data(),
                          {rows, c.inner, c.columns, experts_of(c)}, transposed, nullptr);
    return made;
  });
  EXPECT_TRUE(close(type, out[0], products(c, floats(type, x), floats(type, w), transposed),
                    static_cast<double>(c.inner) + 2));
}

TEST_P(CudaGrouped, ProductsWithTransposed) {
  for_each("case", kCases, [&](const Case& c) { expect_products(type(), c, true, 0); });
  expect_products(type(), kCases[2], true, 1);
}
TEST_P(CudaGrouped, Products) {
  for_each("case", kCases, [&](const Case& c) { expect_products(type(), c, false, 0); });
  expect_products(type(), kCases[2], false, 1);
}

/// On top of what is there.
std::vector<Exact> gradients(const Case& c, const std::vector<float>& g,
                             const std::vector<float>& x, const std::vector<float>& before) {
  std::vector<Exact> out;
  for (const float value : before) out.push_back({value, std::fabs(value)});
  for_rows(c, [&](int64_t expert, int64_t row) {
    for (int64_t i = 0; i < c.inner; ++i) {
      for (int64_t column = 0; column < c.columns; ++column) {
        add(out[static_cast<size_t>((expert * c.inner + i) * c.columns + column)],
            double{g[static_cast<size_t>(row * c.inner + i)]} *
                x[static_cast<size_t>(row * c.columns + column)]);
      }
    }
  });
  return out;
}

void expect_gradients(Type type, const Case& c, int64_t shift) {
  const std::vector<int32_t> ends = ends_of(c);
  const int64_t rows = ends.back();
  const Memory g = Memory::of(type, normal(rows * c.inner, 3), shift),
               x = Memory::of(type, normal(rows * c.columns, 4), shift),
               before = Memory::raw(normal(experts_of(c) * c.inner * c.columns, 5), shift),
               of_ends = Memory::raw(ends, shift);
  const auto out = in_every_order([&] {
    std::vector<Memory> made{before};
    launch_grouped_matmul_tn(type, g.data(), x.data(), of_ends.as<int32_t>(), made[0].as<float>(),
                             {rows, c.inner, c.columns, experts_of(c)}, nullptr);
    return made;
  });
  EXPECT_TRUE(close(Type::kFloat32, out[0],
                    gradients(c, floats(type, g), floats(type, x), before.to<float>()),
                    static_cast<double>(rows) + 2));
}

TEST_P(CudaGrouped, Gradients) {
  for_each("case", kCases, [&](const Case& c) { expect_gradients(type(), c, 0); });
  expect_gradients(type(), kCases[2], 1);
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
