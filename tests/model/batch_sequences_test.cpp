#include "../../src/model/batch_sequences.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "sftrun/spec/blocks.h"

namespace sftrun::model {
namespace {

std::unique_ptr<Decoder> cached_model() {
  return Decoder::load(
      weights::Checkpoint::open(std::filesystem::path(SFTRUN_TEST_DATA) / "families" / "llama"),
      {});
}

SequenceRequest prompt_of(size_t index, size_t num_tokens, int64_t max_new_tokens = 4) {
  auto options = std::make_shared<SamplingOptions>();
  options->max_new_tokens = max_new_tokens;
  return {.prompt = {.index = index, .tokens = std::vector<int32_t>(num_tokens, 5)},
          .options = options};
}

std::vector<size_t> prompts_in_rows(const BatchSequences& sequences) {
  std::vector<size_t> prompts;
  for (const CachedSequence& row : sequences.rows()) prompts.push_back(row.request.prompt.index);
  return prompts;
}

TEST(BatchSequences, AreAdmittedUntilAPassHasEnoughTokens) {
  const auto decoder = cached_model();
  BatchSequences sequences(*decoder, 8);
  for (size_t i = 0; i < 4; ++i) sequences.add(prompt_of(i, 2048));
  EXPECT_EQ(sequences.num_free(), 4U);
  EXPECT_EQ(sequences.admit(/*one_prompt=*/false), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(sequences.num_waiting(), 2U);
  EXPECT_EQ(sequences.admit(/*one_prompt=*/true), (std::vector<size_t>{2}));
  EXPECT_EQ(sequences.admit(/*one_prompt=*/false), (std::vector<size_t>{3}));
  EXPECT_TRUE(sequences.admit(/*one_prompt=*/false).empty());
  EXPECT_EQ(sequences.num_free(), 4U) << "rows count, too";
}

TEST(BatchSequences, LeaveNoGapsInTheRows) {
  const auto decoder = cached_model();
  BatchSequences sequences(*decoder, 8);
  for (size_t i = 0; i < 5; ++i) sequences.add(prompt_of(i, 1));
  sequences.admit(/*one_prompt=*/false);
  sequences.reserve(1);
  sequences.add(prompt_of(5, 1));
  sequences.add(prompt_of(6, 1));
  sequences.remove(1);
  EXPECT_EQ(prompts_in_rows(sequences), (std::vector<size_t>{0, 4, 2, 3}));
  const auto is_dropped = [](size_t prompt) { return prompt == 2 || prompt == 3 || prompt == 5; };
  EXPECT_EQ(sequences.drop(is_dropped), (std::vector<size_t>{3, 2, 5}));
  EXPECT_EQ(prompts_in_rows(sequences), (std::vector<size_t>{0, 4}));
  EXPECT_EQ(sequences.num_waiting(), 1U);
}

TEST(BatchSequences, CacheGrowsNotBeyondTheLongestSequence) {
  const auto decoder = cached_model();
  BatchSequences sequences(*decoder, 2);
  const uint64_t of_token = sequences.cache_bytes(1, 1);
  sequences.add(prompt_of(0, 10, /*max_new_tokens=*/20));
  EXPECT_EQ(sequences.cache_bytes(0, 0), 30 * of_token) << "a waiting prompt counts";
  sequences.admit(/*one_prompt=*/false);
  sequences.reserve(1000);
  EXPECT_EQ(sequences.cache_bytes(0, 0), 30 * of_token);
  sequences.clear();
  EXPECT_EQ(sequences.cache_bytes(0, 0), 0U);
}

TEST(BatchSequences, CacheHasTheLayersOfThisStageOnly) {
  const auto whole = cached_model();
  DecoderOptions options;
  options.held = {whole->layer_unit(1), whole->head_unit() + 1};
  const auto stage = Decoder::load(
      weights::Checkpoint::open(std::filesystem::path(SFTRUN_TEST_DATA) / "families" / "llama"),
      options);
  const auto layers = static_cast<uint64_t>(whole->layers().size());
  EXPECT_EQ(BatchSequences(*stage, 8).cache_bytes(1, 64) * layers,
            BatchSequences(*whole, 8).cache_bytes(1, 64) * (layers - 1));
}

TEST(BatchSequences, CacheHasTheStatesOfDeltaNets) {
  const auto decoder = Decoder::load(
      weights::Checkpoint::open(std::filesystem::path(SFTRUN_TEST_DATA) / "families" / "qwen3_5"),
      {});
  const spec::ArchSpec& arch = decoder->arch();
  uint64_t of_token = 0, of_row = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    const spec::DeltaNetSpec& delta = arch.delta_net;
    if (spec::has_state(arch, layer)) {
      of_row += static_cast<uint64_t>(delta.channels() * (delta.conv_kernel - 1) +
                                      delta.num_value_heads * delta.key_dim * delta.value_dim);
    } else {
      of_token += static_cast<uint64_t>(2 * spec::attention_sizes(arch, layer).keys());
    }
  }
  EXPECT_GT(of_row, 0U);
  EXPECT_EQ(BatchSequences(*decoder, 8).cache_bytes(3, 64), 3 * 4 * (64 * of_token + of_row));
}

}  // namespace
}  // namespace sftrun::model
