#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "../../src/kernels/cuda/grouped.h"
#include "sftrun/kernels/grouped_matmul.h"
#include "support/tensors.h"

// Products of many matrices with the rows that are theirs, in every way that a card has for them.
namespace sftrun::kernels {
namespace {

struct Shape {
  std::vector<int64_t> rows;  // of each expert
  int64_t inner, columns;
};

std::vector<Shape> shapes() {
  return {{{3, 0, 5}, 16, 24},     {{0, 0, 7, 0}, 4, 9},   {{64, 65, 1, 63}, 40, 70},
          {{200, 0, 130}, 33, 65}, {{1, 1, 1, 1}, 64, 64}, {{0, 0}, 8, 8}};
}

struct Case {
  at::Tensor x, g, w, w_other;  // [rows, inner], [rows, columns], both layouts of the matrices
  Routes routes;
};

Case make(const Shape& shape, at::ScalarType dtype) {
  std::vector<int64_t> chosen;
  for (size_t e = 0; e < shape.rows.size(); ++e)
    chosen.insert(chosen.end(), static_cast<size_t>(shape.rows[e]), static_cast<int64_t>(e));
  const auto rows = static_cast<int64_t>(chosen.size()),
             experts = static_cast<int64_t>(shape.rows.size());
  Case c;
  c.x = test::normal({rows, shape.inner}, 1).to(dtype);
  c.g = test::normal({rows, shape.columns}, 2).to(dtype);
  c.w = test::normal({experts, shape.columns, shape.inner}, 3).to(dtype);
  c.w_other = c.w.transpose(1, 2).contiguous();
  c.routes = routes_of(at::tensor(chosen, at::kLong).view({rows, 1}), experts);
  return c;
}

/// In fp64, one row after the other.
at::Tensor expected_product(const Case& c) {
  at::Tensor y = at::zeros({c.x.size(0), c.w.size(1)}, at::kDouble);
  for (int64_t row = 0; row < c.x.size(0); ++row) {
    const int64_t expert = c.routes.experts[row].item<int64_t>();
    y[row] = at::mv(c.w[expert].to(at::kDouble), c.x[row].to(at::kDouble));
  }
  return y;
}

at::Tensor expected_gradient(const Case& c) {
  at::Tensor out = at::zeros(c.w.sizes(), at::kDouble);
  for (int64_t row = 0; row < c.x.size(0); ++row) {
    const int64_t expert = c.routes.experts[row].item<int64_t>();
    out[expert].add_(at::outer(c.g[row].to(at::kDouble), c.x[row].to(at::kDouble)));
  }
  return out;
}

TEST(GroupedProducts, OnTheCpuAreThoseOfEachRow) {
  for (const Shape& shape : shapes()) {
    const Case c = make(shape, at::kFloat);
    EXPECT_TRUE(test::close(grouped_matmul(c.x, c.w, true, c.routes), expected_product(c), 1e-6));
    EXPECT_TRUE(
        test::close(grouped_matmul(c.x, c.w_other, false, c.routes), expected_product(c), 1e-6));
    at::Tensor out = at::ones(c.w.sizes(), at::kFloat);
    add_grouped_matmul_tn_(out, c.g, c.x, c.routes);
    EXPECT_TRUE(test::close(out - 1, expected_gradient(c), 1e-6));
  }
}

// LibTorch refuses rows that are not whole 16 bytes on a CPU as on a card.
TEST(GroupedProducts, AtOnceTakeEveryShape) {
  for (const Shape& shape : shapes()) {
    const Case c = make(shape, at::kBFloat16);
    if (c.x.size(0) == 0) continue;
    const at::Tensor product = expected_product(c);
    EXPECT_TRUE(test::close(grouped_matmul_at_once(c.x, c.w, true, c.routes.ends), product, 4e-3));
    EXPECT_TRUE(
        test::close(grouped_matmul_at_once(c.x, c.w_other, false, c.routes.ends), product, 4e-3));
    const at::Tensor gradient = grouped_matmul_tn_at_once(c.g, c.x, c.routes.ends),
                     expected = expected_gradient(c);
    ASSERT_EQ(gradient.sizes(), expected.sizes());
    for (int64_t e = 0; e < c.w.size(0); ++e) {
      if (shape.rows[static_cast<size_t>(e)] == 0) continue;  // holds anything
      EXPECT_TRUE(test::close(gradient[e], expected[e], 4e-3)) << "expert " << e;
    }
  }
}

/// What a block does with what it was given, one element after the other.
template <typename Put>
void multiply_tile(const cuda::MatrixView<float>& left, const cuda::MatrixView<float>& right,
                   Put&& put) {
  for (int row = 0; row < cuda::kGroupedTile; ++row) {
    for (int column = 0; column < cuda::kGroupedTile; ++column) {
      if (row >= left.rows || column >= right.columns) continue;
      float sum = 0;
      for (int64_t k = 0; k < left.columns + 3; ++k)  // beyond the edge as well
        sum += left.from(0, k).at(row, 0) * right.from(k, 0).at(0, column);
      put(row, column, sum);
    }
  }
}

int64_t tiles(int64_t n) {
  return (n + cuda::kGroupedTile - 1) / cuda::kGroupedTile;
}

TEST(GroupedProducts, CudaBlocksCoverTheResultOnce) {
  for (const Shape& shape : shapes()) {
    const Case c = make(shape, at::kFloat);
    const int64_t rows = c.x.size(0), experts = c.w.size(0), columns = shape.columns;
    for (const bool transposed : {true, false}) {
      const cuda::GroupedProduct<float> product{c.x.data_ptr<float>(),
                                                (transposed ? c.w : c.w_other).data_ptr<float>(),
                                                shape.inner, columns, transposed};
      at::Tensor y = at::zeros({rows, columns}, at::kFloat), writes = at::zeros_like(y);
      auto y_at = y.accessor<float, 2>(), writes_at = writes.accessor<float, 2>();
      for (int64_t block = 0; block < cuda::max_row_tiles(rows, experts); ++block) {
        const cuda::RowTile tile =
            cuda::row_tile(c.routes.ends.data_ptr<int32_t>(), experts, block);
        if (tile.rows == 0) continue;
        for (int64_t j = 0; j < tiles(columns); ++j) {
          const int64_t first = j * cuda::kGroupedTile;
          multiply_tile(product.left(tile), product.right(tile, first),
                        [&](int row, int column, float value) {
                          y_at[tile.begin + row][first + column] = value;
                          writes_at[tile.begin + row][first + column] += 1;
                        });
        }
      }
      EXPECT_TRUE(test::close(y, expected_product(c), 1e-5));
      EXPECT_TRUE((writes == 1).all().item<bool>());
    }
  }
}

TEST(GroupedProducts, CudaBlocksSumGradients) {
  for (const Shape& shape : shapes()) {
    const Case c = make(shape, at::kFloat);
    const cuda::GroupedGradient<float> product{c.g.data_ptr<float>(), c.x.data_ptr<float>(),
                                               shape.columns, shape.inner};
    at::Tensor out = at::ones(c.w.sizes(), at::kFloat);
    auto out_at = out.accessor<float, 3>();
    for (int64_t expert = 0; expert < c.w.size(0); ++expert) {
      const int64_t begin = c.routes.offsets[static_cast<size_t>(expert)],
                    rows = c.routes.offsets[static_cast<size_t>(expert) + 1] - begin;
      for (int64_t i = 0; i < tiles(shape.columns); ++i) {
        for (int64_t j = 0; j < tiles(shape.inner); ++j) {
          const int64_t row0 = i * cuda::kGroupedTile, column0 = j * cuda::kGroupedTile;
          multiply_tile(product.left(begin, rows, row0), product.right(begin, rows, column0),
                        [&](int row, int column, float value) {
                          out_at[expert][row0 + row][column0 + column] += value;
                        });
        }
      }
    }
    EXPECT_TRUE(test::close(out - 1, expected_gradient(c), 1e-5));
  }
}

}  // namespace
}  // namespace sftrun::kernels
