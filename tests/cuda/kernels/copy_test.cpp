#include "copy/copy_matrices_launch.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

SFTRUN_FOR_TYPES(CudaCopy);

struct Shape {
  int64_t rows, columns, to_stride;
  float scale;
  int64_t from_shift = 0, to_shift = 0;  ///< elements behind an address aligned to 16 bytes
};
/// Rows of whole vectors, and what of each kind keeps them from being that: their length, their
/// distance, the address on either side.
constexpr Shape kShapes[] = {{1, 1, 1, 1},         {3, 5, 5, 0.5F},       {16, 40, 64, 2},
                             {200, 8, 24, 1},      {1, 4097, 4097, 3},    {65, 16, 17, -1},
                             {65, 16, 20, -1},     {700, 64, 128, 0.25F}, {9, 24, 32, 2, 1},
                             {9, 24, 32, 2, 0, 1}, {9, 24, 24, 2, 4, 4},  {9, 24, 24, 2, 8, 16}};

// All of them in one launch; what lies between their rows stays.
TEST_P(CudaCopy, ManyAtOnce) {
  std::vector<Memory> from, to;
  std::vector<MatrixPlacement> placements;
  for (const Shape& shape : kShapes) {
    const auto seed = static_cast<uint64_t>(from.size() + 1);
    from.push_back(Memory::of(type(), normal(shape.rows * shape.columns, seed), shape.from_shift));
    to.push_back(
        Memory::nans(type(), (shape.rows - 1) * shape.to_stride + shape.columns, shape.to_shift));
  }
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    placements.push_back({from[i].data(), to[i].data(), kShapes[i].rows, kShapes[i].columns,
                          kShapes[i].to_stride, kShapes[i].scale});
  }
  launch_copy_matrices(type(), placements.data(), static_cast<int64_t>(placements.size()), nullptr);
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    const Shape& shape = kShapes[i];
    SCOPED_TRACE(i);
    const std::vector<float> values = floats(type(), from[i]), found = floats(type(), to[i]);
    for (int64_t at = 0; at < static_cast<int64_t>(found.size()); ++at) {
      const int64_t row = at / shape.to_stride, column = at % shape.to_stride;
      const float here = found[static_cast<size_t>(at)];
      if (column >= shape.columns) {
        ASSERT_TRUE(std::isnan(here)) << at;
        continue;
      }
      const float value = values[static_cast<size_t>(row * shape.columns + column)];
      ASSERT_EQ(here, rounded(type(), {value * shape.scale})[0]) << at;
    }
  }
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
