#include <cmath>

#include "experts/grouped_scalar_launch.h"
#include "experts/grouped_tiles_launch.h"
#include "packed.h"
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
    launch_grouped_scalar(type, x.data(), w.data(), of_ends.as<int32_t>(), made[0].data(),
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
    launch_grouped_scalar_tn(type, g.data(), x.data(), of_ends.as<int32_t>(), made[0].as<float>(),
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

// ---- On tensor cores

/// Rows, depths and columns below, at and beyond tiles of 64 and 128 rows, 32 deep, 32 and 128 wide;
/// more experts than a block has threads.
const std::vector<Case>& tile_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all = {{{0, 0, 0}, 8, 8},      {{1}, 8, 8},
                             {{0, 2, 0, 1}, 24, 40}, {{200, 0, 0}, 32, 128},
                             {{129, 128}, 40, 136},  {{3, 0, 64, 65}, 104, 72},
                             {{130, 7}, 16, 32},     {{9, 1, 300}, 48, 264}};
    Case many{{}, 8, 16};
    for (int expert = 0; expert < 300; ++expert)
      many.rows.push_back(expert % 7 == 3 ? expert % 5 : 0);
    all.push_back(many);
    return all;
  }();
  return cases;
}

SFTRUN_FOR_TYPES_OF(CudaGroupedTiles, kSixteenBits);

/// x_e w_e^T + low_e b_e^T, or without the transposes, on top of `before` if that is not empty.
struct TileOperands {
  std::vector<float> x, w, low, b, before;
  int64_t rank = 0;
};
std::vector<Exact> sums_of(const Case& c, const TileOperands& operands, bool transposed) {
  std::vector<Exact> y = products(c, operands.x, operands.w, transposed);
  if (operands.rank > 0) {
    const std::vector<Exact> beside =
        products({c.rows, operands.rank, c.columns}, operands.low, operands.b, transposed);
    for (size_t i = 0; i < y.size(); ++i)
      y[i].value += beside[i].value, y[i].size += beside[i].size;
  }
  for (size_t i = 0; i < operands.before.size(); ++i) add(y[i], operands.before[i]);
  return y;
}

/// Runs `launch` with an adapter of `rank` (0: none) and compares the results.
/// @param w the matrices' values, already of the type
template <typename Launch>
void expect_tiles(Type type, const Case& c, bool transposed, int64_t rank, bool adds,
                  const std::vector<float>& w, const Launch& launch) {
  const std::vector<int32_t> ends = ends_of(c);
  const int64_t rows = ends.back(), experts = experts_of(c);
  const Memory x = Memory::of(type, normal(rows * c.inner, 1)),
               low = Memory::of(type, normal(rows * rank, 2)),
               b = Memory::of(type, normal(experts * rank * c.columns, 3)),
               before = Memory::of(type, normal(rows * c.columns, 4)), of_ends = Memory::raw(ends);
  const auto out = in_every_order([&] {
    std::vector<Memory> made{adds ? before : Memory::nans(type, rows * c.columns)};
    GroupedTiles tiles{{x.data(), nullptr, c.inner},
                       {rank == 0 ? nullptr : low.data(), b.data(), rank},
                       of_ends.as<int32_t>(),
                       rows,
                       c.columns,
                       experts,
                       transposed,
                       adds,
                       made[0].data()};
    launch(tiles);
    return made;
  });
  const TileOperands operands{floats(type, x),
                              w,
                              floats(type, low),
                              floats(type, b),
                              adds ? floats(type, before) : std::vector<float>(),
                              rank};
  EXPECT_TRUE(close(type, out[0], sums_of(c, operands, transposed),
                    static_cast<double>(c.inner + rank) + 2));
}

void expect_dense(Type type, const Case& c, bool transposed, int64_t rank, bool adds) {
  const Memory w = Memory::of(type, normal(experts_of(c) * c.inner * c.columns, 5));
  expect_tiles(type, c, transposed, rank, adds, floats(type, w), [&](GroupedTiles& tiles) {
    tiles.product.w = w.data();
    EXPECT_TRUE(tiles.rows == 0 || tiles_serve(type, tiles));
    launch_grouped_tiles(type, tiles, nullptr);
  });
}

TEST_P(CudaGroupedTiles, DenseTransposed) {
  for_each("case", tile_cases(), [&](const Case& c) { expect_dense(type(), c, true, 0, false); });
}
TEST_P(CudaGroupedTiles, Dense) {
  for_each("case", tile_cases(), [&](const Case& c) { expect_dense(type(), c, false, 0, false); });
}
TEST_P(CudaGroupedTiles, WithAnAdapter) {
  for (const int64_t rank : {8, 16, 40})
    for (const bool transposed : {false, true})
      expect_dense(type(), tile_cases()[4], transposed, rank, false);
}
TEST_P(CudaGroupedTiles, AddedToWhatIsThere) {
  for (const bool transposed : {false, true})
    expect_dense(type(), tile_cases()[5], transposed, 0, true);
}

/// [rows, columns] of the stack of all experts' matrices.
std::pair<int64_t, int64_t> stack_shape(const Case& c, bool transposed) {
  return transposed ? std::pair{experts_of(c) * c.columns, c.inner}
                    : std::pair{experts_of(c) * c.inner, c.columns};
}

// A format for each case in turns.
TEST_P(CudaGroupedTiles, OfFourBits) {
  const std::vector<FourBitCase> formats = {
      {false, 8, false, 0}, {false, 64, true, 3}, {true, 32, false, 0}};
  size_t next = 0;
  for (const bool transposed : {false, true}) {
    for_each("case", tile_cases(), [&](const Case& c) {
      const auto [rows, columns] = stack_shape(c, transposed);
      const FourBitCase& format = formats[next++ % formats.size()];
      SCOPED_TRACE(testing::PrintToString(format));
      const FourBitMatrix w(format, rows, columns);
      ASSERT_TRUE(w.view().groups_are_whole());
      expect_tiles(type(), c, transposed, 16, false, rounded(type(), w.values()),
                   [&](const GroupedTiles& tiles) {
                     launch_grouped_tiles_4bit(type(), tiles, w.view(), w.tables(), nullptr);
                   });
    });
  }
}

TEST_P(CudaGroupedTiles, OfEightBits) {
  size_t next = 0;
  for (const bool transposed : {false, true}) {
    for_each("case", tile_cases(), [&](const Case& c) {
      const auto [rows, columns] = stack_shape(c, transposed);
      EightBitMatrix w(next++ % 2 == 0 ? EightBits::kE4m3 : EightBits::kInt8, true, rows, columns);
      w.make_finite();
      expect_tiles(type(), c, transposed, 0, false, rounded(type(), w.values()),
                   [&](const GroupedTiles& tiles) {
                     launch_grouped_tiles_8bit(type(), tiles, w.view(), nullptr);
                   });
    });
  }
}

TEST_P(CudaGroupedTiles, Gradients) {
  for_each("case", tile_cases(), [&](const Case& c) {
    const std::vector<int32_t> ends = ends_of(c);
    const int64_t rows = ends.back();
    const Memory g = Memory::of(type(), normal(rows * c.inner, 3)),
                 x = Memory::of(type(), normal(rows * c.columns, 4)),
                 before = Memory::raw(normal(experts_of(c) * c.inner * c.columns, 5)),
                 of_ends = Memory::raw(ends);
    const auto out = in_every_order([&] {
      std::vector<Memory> made{before};
      const GroupedGradients gradients{
          g.data(), x.data(),  of_ends.as<int32_t>(), rows,
          c.inner,  c.columns, experts_of(c),         made[0].as<float>()};
      EXPECT_TRUE(rows == 0 || gradient_tiles_serve(type(), gradients));
      launch_grouped_gradients(type(), gradients, nullptr);
      return made;
    });
    EXPECT_TRUE(close(Type::kFloat32, out[0],
                      gradients(c, floats(type(), g), floats(type(), x), before.to<float>()),
                      static_cast<double>(rows) + 2));
  });
}

// What is not whole groups of eight, or not aligned, is left to the other kernel.
TEST(CudaGroupedTilesServe, RowsOfWholeGroups) {
  const Memory memory = Memory::of(Type::kBFloat16, std::vector<float>(64)),
               shifted = Memory::of(Type::kBFloat16, std::vector<float>(64), 1);
  const auto tiles = [&](const void* x, int64_t inner, int64_t columns) {
    return GroupedTiles{
        {x, memory.data(), inner}, {}, nullptr, 1, columns, 1, true, false, memory.data()};
  };
  EXPECT_TRUE(tiles_serve(Type::kBFloat16, tiles(memory.data(), 8, 16)));
  EXPECT_FALSE(tiles_serve(Type::kFloat32, tiles(memory.data(), 8, 16)));
  EXPECT_FALSE(tiles_serve(Type::kBFloat16, tiles(memory.data(), 12, 16)));
  EXPECT_FALSE(tiles_serve(Type::kBFloat16, tiles(memory.data(), 8, 20)));
  EXPECT_FALSE(tiles_serve(Type::kBFloat16, tiles(shifted.data(), 8, 16)));
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
