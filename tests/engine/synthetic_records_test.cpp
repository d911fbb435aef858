#include "synthetic_records.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "data/toy_vision_model.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/images/decode.h"
#include "support/expect_error.h"

namespace sftrun::engine {
namespace {

constexpr int64_t kVocab = 200;

SyntheticImages toy_images(const test::VisionFamily& family, const app::PlannedImages& planned) {
  const data::TextModel model = test::toy_vision_model(family);
  return {planned, model.images, *model.tokenizer};
}

TEST(SyntheticRecords, HaveTextsOfTheLength) {
  const SyntheticRecords records(20, kVocab);
  const std::vector<data::Example> examples = records.of_step(3, 0);
  ASSERT_EQ(examples.size(), 3U);
  for (const data::Example& example : examples) {
    ASSERT_EQ(example.tokens.size(), 20U);
    EXPECT_TRUE(
        std::equal(example.tokens.begin() + 1, example.tokens.end(), example.labels.begin()));
    EXPECT_EQ(example.labels.back(), data::kIgnoreIndex);
    EXPECT_EQ(example.label_tokens, 19);
    EXPECT_TRUE(example.media.empty());
  }
  EXPECT_NE(records.of_step(1, 1).front().tokens, examples.front().tokens);
  EXPECT_EQ(records.of_step(3, 0).front().tokens, examples.front().tokens);
}

TEST(SyntheticRecords, BeginWithImagesWithoutLabels) {
  // Two tokens, and a marker before and behind them.
  const SyntheticRecords records(
      20, kVocab, toy_images(test::toy_qwen(), {.of_sequence = 2, .width = 16, .height = 8}));
  EXPECT_EQ(records.images()->tokens_of_record(), 8);
  EXPECT_EQ(records.images()->features_of_record(), 4);
  const data::Example example = records.of_step(1, 0).front();
  ASSERT_EQ(example.tokens.size(), 20U);
  ASSERT_EQ(example.media.size(), 2U);
  EXPECT_EQ(example.media[1].begin, 4);
  EXPECT_EQ(example.media[1].end, 8);
  EXPECT_EQ(example.label_tokens, 12);
  EXPECT_EQ(std::count(example.labels.begin(), example.labels.end(), data::kIgnoreIndex), 8);
  EXPECT_EQ(example.labels[7], example.tokens[8]);
  EXPECT_EQ(example.labels[6], data::kIgnoreIndex);
}

TEST(SyntheticRecords, HoldImagesOfTheSize) {
  const SyntheticRecords records(
      64, kVocab, toy_images(test::toy_gemma3(), {.of_sequence = 3, .width = 40, .height = 24}));
  std::vector<std::string> files;
  for (const data::SequenceMedia& image : records.of_step(1, 0).front().media) {
    const images::Image pixels = images::decode(std::as_bytes(std::span(*image.media.bytes)));
    EXPECT_EQ(pixels.width, 40);
    EXPECT_EQ(pixels.height, 24);
    EXPECT_NE(std::minmax_element(pixels.pixels.begin(), pixels.pixels.end()).first,
              std::minmax_element(pixels.pixels.begin(), pixels.pixels.end()).second);
    files.push_back(*image.media.bytes);
  }
  EXPECT_NE(files[0], files[1]) << "the images of a record differ";
}

TEST(SyntheticRecords, MakeBatchesWithRowsForFeatures) {
  const SyntheticRecords records(
      40, kVocab, toy_images(test::toy_smolvlm(), {.of_sequence = 1, .width = 16, .height = 8}));
  const auto examples = data::ExampleStore::in_memory(records.of_step(2, 0));
  const data::Batch batch = data::make_batch(examples, std::vector<data::Bin>{{0}, {1}}, 0, 2);
  EXPECT_EQ(batch.images.size(), 2U);
  int64_t rows = 0;
  for (const data::RowSpan& run : batch.image_rows) rows += run.end - run.begin;
  EXPECT_EQ(rows, 2 * records.images()->features_of_record());
}

TEST(SyntheticRecords, RefuseImagesThatLeaveNoText) {
  const auto images = toy_images(test::toy_qwen(), {.of_sequence = 2, .width = 16, .height = 8});
  EXPECT_EQ(SyntheticRecords(9, kVocab, images).of_step(1, 0).front().label_tokens, 1);
  test::expect_error<ConfigError>([&] { SyntheticRecords(8, kVocab, images); },
                                  {"2 images of 16 x 8 pixels have 8 tokens, and a sequence has 8",
                                   "--images", "raise --seq-len"});
}

TEST(SyntheticRecords, RefuseImagesBeforeTheyAreMade) {
  // Of these, a file alone would take minutes.
  const app::PlannedImages huge{.of_sequence = 1, .width = 65'000, .height = 65'000};
  test::expect_error<ConfigError>(
      [&] { SyntheticRecords(1, kVocab, toy_images(test::toy_gemma3(), huge)); },
      {"1 image of 65000 x 65000 pixels has", "raise --seq-len"});
}

}  // namespace
}  // namespace sftrun::engine
