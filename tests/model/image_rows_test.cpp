#include "sftrun/model/image_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::model {
namespace {

/// LLaVA-NeXT's tiles of 8 pixels in 2 x 2 patches of 4.
class UnpaddedRows : public ::testing::Test {
 protected:
  UnpaddedRows() {
    const nlohmann::json settings = {{"image_processor_type", "LlavaNextImageProcessor"},
                                     {"size", {{"shortest_edge", 8}}},
                                     {"crop_size", {{"height", 8}, {"width", 8}}},
                                     {"image_grid_pinpoints", {{8, 16}, {16, 8}}}};
    const nlohmann::json members = {{"processor_class", "LlavaNextProcessor"},
                                    {"patch_size", 4},
                                    {"num_additional_image_tokens", 1},
                                    {"vision_feature_select_strategy", "default"}};
    write_file_atomically(dir_ / "preprocessor_config.json", settings.dump());
    write_file_atomically(dir_ / "processor_config.json", members.dump());
    processor_ = images::read_processor(dir_.path());
    vision_.patches.side = 4;
    vision_.merger.side = 1;
    vision_.newline = "model.image_newline";
    vision_.canvases = {{8, 16}, {16, 8}};
  }
  std::vector<int64_t> rows_of(const std::vector<std::array<int64_t, 2>>& sizes) {
    std::vector<images::ImagePlan> plans;
    for (const auto& [width, height] : sizes)
      plans.push_back(images::plan_image(processor_, width, height));
    std::vector<PlannedRows> rows;
    int64_t num_tokens = 0;
    for (const images::ImagePlan& plan : plans) {
      rows.push_back({.plan = &plan});
      num_tokens += plan.num_tokens;
    }
    const at::Tensor places = tower_input(processor_, vision_, rows).feature_rows;
    EXPECT_EQ(places.size(0), num_tokens);
    return {places.const_data_ptr<int64_t>(), places.const_data_ptr<int64_t>() + places.size(0)};
  }

  test::TemporaryDirectory dir_;
  images::ImageProcessor processor_;
  spec::VisionSpec vision_;
};

TEST_F(UnpaddedRows, AreThoseOfTheWholeImageThenOfTheTilesTogether) {
  EXPECT_EQ(rows_of({{16, 8}}),
            (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 8, 9, -1, 6, 7, 10, 11, -1}));
}

TEST_F(UnpaddedRows, OfAnImageAfterAnotherCountOn) {
  EXPECT_EQ(rows_of({{16, 8}, {8, 16}}),
            (std::vector<int64_t>{0,  1,  2,  3,  4,  5,  8,  9,  -1, 6,  7,  10, 11, -1, 12,
                                  13, 14, 15, 16, 17, -1, 18, 19, -1, 20, 21, -1, 22, 23, -1}));
}

// Two of the canvas's four columns of patches are margins.
TEST_F(UnpaddedRows, LeaveOutMargins) {
  EXPECT_EQ(rows_of({{8, 7}}), (std::vector<int64_t>{0, 1, 2, 3, 5, 8, -1, 7, 10, -1}));
}

TEST_F(UnpaddedRows, NeedTheModelsCanvases) {
  vision_.canvases.pop_back();
  test::expect_error<DataError>(
      [&] {
        rows_of({{16, 8}});
      },
      {"`image_grid_pinpoints` are not those of the model"});
}

}  // namespace
}  // namespace sftrun::model
