#include "processor/colour_rows.h"

#include <gtest/gtest.h>

#include "images/image_files.h"
#include "processor/colours.h"

namespace sftrun::images {
namespace {

ImageProcessor normalising_processor(std::array<double, 3> mean, std::array<double, 3> std) {
  ImageProcessor processor;
  processor.image_mean = mean, processor.image_std = std;
  return processor;
}

bool computes_rows_here() {
  const ColourRows rows({}, {ColourFormula{.high = 0}, {.high = 0}, {.high = 0}});
  return rows.computes();
}

/// Of each number of pixels around those that are done together, the table's values to the bit.
void expect_values_of(const ColourRows& rows) {
  const Image image = fixtures::random_image(50, 1, 7);
  for (const int64_t count : {1, 15, 16, 17, 47, 48, 50}) {
    std::vector<float> red(51, -7), green(51, -7), blue(51, -7);
    rows.write(image.row(0), count, red.data(), green.data(), blue.data());
    for (int64_t x = 0; x < count; ++x) {
      const uint8_t* pixel = image.row(0) + 3 * x;
      const auto at = static_cast<size_t>(x);
      EXPECT_EQ(red[at], rows.table()[0][pixel[0]]);
      EXPECT_EQ(green[at], rows.table()[1][pixel[1]]);
      EXPECT_EQ(blue[at], rows.table()[2][pixel[2]]);
    }
    EXPECT_EQ(red[static_cast<size_t>(count)], -7) << "nothing behind the row is written";
  }
}

TEST(ColourRows, ComputeWhatReleasedModelsHave) {
  if (!computes_rows_here()) GTEST_SKIP() << "the processor has no AVX2 and FMA";
  using Channels = std::array<double, 3>;
  const Channels half = {0.5, 0.5, 0.5};
  for (const auto& [mean, std] : {std::pair(Channels{0.48145466, 0.4578275, 0.40821073},
                                            Channels{0.26862954, 0.26130258, 0.27577711}),
                                  {Channels{0.485, 0.456, 0.406}, Channels{0.229, 0.224, 0.225}},
                                  {half, half}}) {
    const ColourRows rows = colours_of(normalising_processor(mean, std), Backend::kPil);
    EXPECT_TRUE(rows.computes());
    expect_values_of(rows);
  }
}

TEST(ColourRows, LookUpWhatTheFormulasDoNotGive) {
  ColourTable table =
      colours_of(normalising_processor({0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}), Backend::kPil).table();
  table[2][255] += 1;
  const ColourRows rows(table, {});
  EXPECT_FALSE(rows.computes());
  expect_values_of(rows);
}

}  // namespace
}  // namespace sftrun::images
