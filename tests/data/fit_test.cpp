#include "fit.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"

namespace sftrun::data {
namespace {

using config::TooLong;

Sequence sequence_of(std::vector<uint8_t> mask) {
  Sequence sequence{.mask = std::move(mask)};
  for (size_t i = 0; i < sequence.mask.size(); ++i)
    sequence.ids.push_back(static_cast<int32_t>(100 + i));
  return sequence;
}

TEST(Fit, LabelsAreShifted) {
  const Example example = to_example(sequence_of({0, 0, 1, 1, 0}), 10, 7);
  EXPECT_EQ(example.tokens, (std::vector<int32_t>{100, 101, 102, 103, 104}));
  EXPECT_EQ(example.labels,
            (std::vector<int32_t>{kIgnoreIndex, 102, 103, kIgnoreIndex, kIgnoreIndex}));
  EXPECT_EQ(example.label_tokens, 2);
  EXPECT_EQ(example.record, 7);
}

TEST(Fit, TheFirstTokenHasNoLabel) {
  const Example example = to_example(sequence_of({1, 1}), 10, 0);
  EXPECT_EQ(example.labels, (std::vector<int32_t>{101, kIgnoreIndex}));
  EXPECT_EQ(example.label_tokens, 1);
}

TEST(Fit, TruncationKeepsTheBeginning) {
  const Example example = to_example(sequence_of({0, 1, 1, 1}), 3, 0);
  EXPECT_EQ(example.tokens, (std::vector<int32_t>{100, 101, 102}));
  EXPECT_EQ(example.labels, (std::vector<int32_t>{101, 102, kIgnoreIndex}));
}

TEST(Fit, Fates) {
  const auto fate = [](std::vector<uint8_t> mask, TooLong too_long) {
    return fate_of(sequence_of(std::move(mask)), {.max_seq_len = 3, .too_long = too_long}, "f:1");
  };
  EXPECT_EQ(fate({0, 1, 1}, TooLong::kError), Fate::kKept);
  EXPECT_EQ(fate({0, 1, 1, 1}, TooLong::kDrop), Fate::kTooLong);
  EXPECT_EQ(fate({0, 0, 1, 1}, TooLong::kTruncate), Fate::kTruncated);
  EXPECT_EQ(fate({0, 0, 0, 1}, TooLong::kTruncate), Fate::kLabelsCutOff);
  EXPECT_EQ(fate({0, 0, 0, 0}, TooLong::kTruncate), Fate::kWithoutLabels);
  EXPECT_EQ(fate({0, 0}, TooLong::kDrop), Fate::kWithoutLabels);
  EXPECT_EQ(fate({1}, TooLong::kDrop), Fate::kWithoutLabels);
  EXPECT_EQ(fate({}, TooLong::kDrop), Fate::kWithoutLabels);
}

TEST(Fit, ErrorNamesRecordAndLengths) {
  try {
    fate_of(sequence_of({0, 1, 1, 1}), {.max_seq_len = 3, .too_long = TooLong::kError},
            "f.jsonl:9");
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_EQ(error.message(), "the record has 4 tokens, model.max_seq_len is 3");
    EXPECT_EQ(error.where(), "f.jsonl:9");
  }
}

TEST(Fit, AutoDependsOnTheFormat) {
  config::RunConfig config;
  EXPECT_EQ(length_rule(config, RecordFormat::kText).too_long, TooLong::kTruncate);
  EXPECT_EQ(length_rule(config, RecordFormat::kMessages).too_long, TooLong::kDrop);
  EXPECT_EQ(length_rule(config, RecordFormat::kPromptCompletion).too_long, TooLong::kDrop);
  config.data.too_long = TooLong::kError;
  EXPECT_EQ(length_rule(config, RecordFormat::kText).too_long, TooLong::kError);
}

}  // namespace
}  // namespace sftrun::data
