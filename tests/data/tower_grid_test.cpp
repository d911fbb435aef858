#include "sftrun/data/tower_grid.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

using nlohmann::json;

/// A tower of 3 x 3 patches of 4 pixels with a class token, and LLaVA's processor for it.
class TowerGrids : public ::testing::Test {
 protected:
  TowerGrids() {
    vision_.patches.side = 4;
    vision_.merger.side = 1;
    vision_.class_token = "class_embedding";
    vision_.positions = spec::TowerPositions::kTable;
    vision_.position_rows = 10;
  }
  TowerGrid grid(int64_t pixels, const json& changed = {}) {
    json members = {{"processor_class", "LlavaProcessor"},
                    {"patch_size", 4},
                    {"num_additional_image_tokens", 1},
                    {"vision_feature_select_strategy", "default"}};
    members.update(changed.is_null() ? json::object() : changed);
    const json side = {{"height", pixels}, {"width", pixels}};
    const json settings = {{"image_processor_type", "CLIPImageProcessor"},
                           {"size", {{"shortest_edge", pixels}}},
                           {"crop_size", side}};
    write_file_atomically(dir_ / "preprocessor_config.json", settings.dump());
    write_file_atomically(dir_ / "processor_config.json", members.dump());
    processor_ = images::read_processor(dir_.path());
    return tower_grid(processor_, vision_, images::plan_image(processor_, 20, 10));
  }
  void expect_refusal(int64_t pixels, const json& changed, const char* reason) {
    test::expect_error<DataError>([&] { grid(pixels, changed); },
                                  {reason, "preprocessor_config.json"});
  }

  test::TemporaryDirectory dir_;
  images::ImageProcessor processor_;
  spec::VisionSpec vision_;
};

TEST_F(TowerGrids, AreThePatchesOfTiles) {
  const TowerGrid of_image = grid(12);
  EXPECT_EQ(of_image.tiles, 1);
  EXPECT_EQ(of_image.rows, 3);
  EXPECT_EQ(of_image.columns, 3);
  EXPECT_EQ(of_image.patches(), 9);
}

TEST_F(TowerGrids, LeaveOutWhatIsLessThanAPatch) {
  EXPECT_EQ(grid(15).patches(), 9);
  const images::ImagePlan plan = images::plan_image(processor_, 20, 10);
  EXPECT_EQ(plan.num_values(), 3 * 15 * 15);
  EXPECT_EQ(plan.num_values({.side = 4}), 3 * 12 * 12);
}

TEST_F(TowerGrids, FitTheTableOfPositions) {
  expect_refusal(16, {}, "4 x 4 patches do not fit the position embeddings");
  vision_.positions = spec::TowerPositions::kAxes;
  EXPECT_EQ(grid(16).rows, 4);
  vision_.position_rows = 3;
  expect_refusal(16, {}, "which has 3 of them");
}

/// Files of another model have other numbers of tokens.
TEST_F(TowerGrids, GiveAsManyFeaturesAsThereAreTokens) {
  expect_refusal(12, {{"patch_size", 6}}, "an image has 4 tokens");
  expect_refusal(12, {{"num_additional_image_tokens", 0}}, "vision tower makes 9 features of it");
  expect_refusal(12, {{"vision_feature_select_strategy", "full"}}, "an image has 10 tokens");
  vision_.drops_class_token = false;
  EXPECT_EQ(grid(12, {{"vision_feature_select_strategy", "full"}}).patches(), 9);
}

TEST_F(TowerGrids, DivideIntoSquares) {
  vision_.merger.side = 2;
  expect_refusal(12, {}, "the image processor's tiles are not those of the model's vision tower");
}

}  // namespace
}  // namespace sftrun::data
