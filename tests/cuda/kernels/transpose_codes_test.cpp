#include "quant/dequantize_launch.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

struct Shape {
  int64_t rows, columns;
};
constexpr Shape kShapes[] = {{1, 1},   {1, 300},  {300, 1},  {16, 16},   {64, 64},   {48, 80},
                             {65, 63}, {17, 128}, {128, 17}, {192, 144}, {130, 257}, {0, 5}};

void expect_turned(const Shape& shape, int64_t shift_from, int64_t shift_to) {
  const auto [rows, columns] = shape;
  const std::vector<uint8_t> codes =
      random_bytes(rows * columns, static_cast<uint64_t>(1 + rows + 1000 * columns));
  const Memory from = Memory::raw(codes, shift_from);
  const std::vector<Memory> made = in_every_order([&] {
    std::vector<Memory> to;
    to.push_back(Memory::untouched<uint8_t>(rows * columns, shift_to));
    launch_transpose_codes(from.as<uint8_t>(), to[0].as<uint8_t>(), rows, columns, nullptr);
    return to;
  });
  const std::vector<uint8_t> found = made[0].to<uint8_t>();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      ASSERT_EQ(found[static_cast<size_t>(column * rows + row)],
                codes[static_cast<size_t>(row * columns + column)])
          << row << ", " << column << " of " << rows << " x " << columns;
}

TEST(CudaTransposeCodes, OfEveryShape) {
  for (const Shape& shape : kShapes) expect_turned(shape, 0, 0);
}

// What is aligned to 16 bytes on one side alone is moved byte by byte.
TEST(CudaTransposeCodes, AtAnyAddress) {
  for (const int64_t shift : {1, 8}) {
    expect_turned({64, 48}, shift, 0);
    expect_turned({64, 48}, 0, shift);
  }
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
