#include "sftrun/train/image_loading.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "data/toy_vision_model.h"
#include "sftrun/core/file.h"
#include "sftrun/images/decode.h"
#include "sftrun/layers/tower.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::train {
namespace {

namespace fs = std::filesystem;

fs::path picture(const char* name) {
  return fs::path(SFTRUN_TEST_DATA) / "images" / name;
}

/// A batch of two documents, of which the second begins at row 8.
data::Batch batch_of(const std::vector<std::pair<fs::path, int64_t>>& images,
                     const images::ImageProcessor& processor) {
  data::Batch batch;
  batch.cu_seqlens = {0, 8, 40};
  batch.document_keys = {5, 9};
  for (const auto& [path, row] : images) {
    const std::string file = read_text_file(path);
    const images::Image pixels = images::decode(std::as_bytes(std::span(file)));
    const images::ImagePlan plan = images::plan_image(processor, pixels.width, pixels.height);
    data::SequenceMedia image;
    image.media.path = path.string();
    image.width = pixels.width, image.height = pixels.height;
    image.num_tokens = plan.num_tokens;
    image.begin = row, image.end = row + plan.num_tokens;
    batch.images.push_back(image);
    batch.image_rows.push_back(
        {static_cast<int32_t>(row), static_cast<int32_t>(row + plan.num_tokens)});
  }
  return batch;
}

/// The tower of toy_qwen().
spec::VisionSpec vision_of_toy() {
  spec::VisionSpec vision;
  vision.patches.side = 4, vision.patches.frames = 2;
  vision.merger.side = 2, vision.merger.merge = spec::PatchMerge::kConcat;
  return vision;
}

TEST(ImageLoading, GivesTheProcessorsPatchesInOrder) {
  const auto model = test::toy_vision_model();
  const images::ImageProcessor& processor = model.images->processor;
  const std::vector<std::pair<fs::path, int64_t>> images = {
      {picture("0-1.png"), 1}, {picture("0-16.png"), 9}, {picture("0-8.png"), 20}};
  const data::Batch batch = batch_of(images, processor);
  const layers::TowerInput input = ImageLoader(model.images, vision_of_toy(), 2).load(batch);
  ASSERT_EQ(input.tiles.size(), 3U);
  int64_t first = 0;
  for (size_t i = 0; i < images.size(); ++i) {
    const std::string file = read_text_file(images[i].first);
    const images::ProcessedImage expected =
        images::process(processor, images::decode(std::as_bytes(std::span(file))));
    const int64_t patches = input.tiles[i].patches();
    ASSERT_EQ(patches, expected.plan.rows);
    const at::Tensor values = at::from_blob(const_cast<float*>(expected.values.data()),
                                            {patches, expected.plan.values_per_row});
    EXPECT_TRUE(at::equal(input.patches.narrow(0, first, patches), values));
    first += patches;
  }
  EXPECT_EQ(input.patches.size(0), first);
  EXPECT_EQ(input.tiles[0].document, 5U);
  EXPECT_EQ(input.tiles[1].document, 9U);
  EXPECT_EQ(input.tiles[1].first_patch, 0U);  // counted in the document
  EXPECT_EQ(input.tiles[2].first_patch, input.tiles[1].patches());
}

TEST(ImageLoading, NamesAnImageThatChanged) {
  const auto model = test::toy_vision_model();
  const test::TemporaryDirectory dir;
  fs::copy_file(picture("0-8.png"), dir / "a.png");
  data::Batch batch = batch_of({{dir / "a.png", 1}}, model.images->processor);
  data::SequenceMedia& image = batch.images[0];
  image.width += 1;
  image.num_tokens =
      images::plan_image(model.images->processor, image.width, image.height).num_tokens;
  test::expect_error<DataError>([&] { ImageLoader(model.images, vision_of_toy(), 1).load(batch); },
                                {"when the data were tokenized"});
  fs::remove(dir / "a.png");
  test::expect_error<DataError>([&] { ImageLoader(model.images, vision_of_toy(), 1).load(batch); },
                                {"a.png"});
}

/// As where files of two models are mixed. Leaving out the record would not help: the others are like it.
TEST(ImageLoading, NamesAnImageWhoseFeaturesHaveNoPlaces) {
  const auto model = test::toy_vision_model();
  data::Batch batch =
      batch_of({{picture("0-8.png"), 1}, {picture("0-16.png"), 9}}, model.images->processor);
  ++batch.images[1].num_tokens;
  data::MediaFaults faults;
  for (data::MediaFaults* of : {&faults, static_cast<data::MediaFaults*>(nullptr)}) {
    try {
      ImageLoader(model.images, vision_of_toy(), 1).load(batch, of);
      ADD_FAILURE() << "no error";
    } catch (const data::MediaError& error) {
      EXPECT_EQ(error.document(), 9);
      EXPECT_NE(error.where().find("0-16.png"), std::string::npos);
      EXPECT_NE(error.message().find("places for them"), std::string::npos);
      const DataError in_record = data::error_in_record(error, "data.jsonl:2", true);
      EXPECT_EQ(in_record.fix().find("data.bad_records"), std::string::npos) << in_record.fix();
    }
  }
}

TEST(ImageLoading, PutsZerosInThePlaceOfWhatCannotBeRead) {
  const auto model = test::toy_vision_model();
  const test::TemporaryDirectory dir;
  fs::copy_file(picture("0-8.png"), dir / "a.png");
  data::Batch batch = batch_of({{picture("0-8.png"), 1}, {dir / "a.png", 9}, {dir / "a.png", 20}},
                               model.images->processor);
  batch.images[1].is_blank = true;
  fs::remove(dir / "a.png");
  ImageLoader loader(model.images, vision_of_toy(), 2);
  try {
    loader.load(batch);
    ADD_FAILURE() << "no error";
  } catch (const data::MediaError& error) {
    EXPECT_EQ(error.document(), 9);
    EXPECT_NE(error.where().find("a.png"), std::string::npos);
  }
  data::MediaFaults faults;
  const layers::TowerInput input = loader.load(batch, &faults);
  const std::vector<data::MediaError> noted = faults.take();
  ASSERT_EQ(noted.size(), 1U) << "blank images are not read";
  EXPECT_EQ(noted[0].document(), 9);
  EXPECT_TRUE(faults.take().empty());
  const int64_t patches = input.tiles[0].patches();
  const at::Tensor expected = at::zeros({patches, input.patches.size(1)});
  EXPECT_FALSE(at::equal(input.patches.narrow(0, 0, patches), expected));
  EXPECT_TRUE(at::equal(input.patches.narrow(0, patches, patches), expected));
  EXPECT_TRUE(at::equal(input.patches.narrow(0, 2 * patches, patches), expected));
}

TEST(ImageLoading, RefusesAProcessorOfAnotherTower) {
  const auto model = test::toy_vision_model();
  const data::Batch batch = batch_of({{picture("0-8.png"), 1}}, model.images->processor);
  spec::VisionSpec vision = vision_of_toy();
  vision.patches.side = 8;
  test::expect_error<DataError>([&] { ImageLoader(model.images, vision, 1).load(batch); },
                                {"are not those of the model's vision tower"});
}

}  // namespace
}  // namespace sftrun::train
