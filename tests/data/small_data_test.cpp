#include "sftrun/data/small_data.h"

#include <gtest/gtest.h>

#include "support/packed_run.h"

namespace sftrun::data {
namespace {

const config::ObjectiveInfo &kSft = config::objective_info(config::Objective::kSft),
                            &kEmbed = config::objective_info(config::Objective::kEmbed);

int64_t steps_of(const EpochSize& epoch, int64_t max_seq_len) {
  const int64_t batch = target_batch(epoch, kSft);
  const int64_t bin = bin_tokens(epoch, kSft, batch, max_seq_len);
  return (epoch.tokens + batch * bin - 1) / (batch * bin);
}

EpochSize packed(int64_t tokens, int64_t max_seq_len) {
  return {.bins = (tokens + max_seq_len - 1) / max_seq_len, .tokens = tokens};
}

TEST(SmallData, LargeSetsHaveTheWholeTarget) {
  const EpochSize epoch = packed(5'200'000, 2048);  // 2540 bins
  EXPECT_EQ(target_batch(epoch, kSft), config::kTargetGlobalBatch);
  EXPECT_EQ(bin_tokens(epoch, kSft, config::kTargetGlobalBatch, 2048), 2048);
}

TEST(SmallData, SmallSetsHaveFiftyStepsAnEpoch) {
  for (const int64_t tokens : {60'000, 150'000, 400'000, 1'000'000, 3'000'000}) {
    const EpochSize epoch = packed(tokens, 2048);
    EXPECT_GE(steps_of(epoch, 2048), kStepsInEpoch) << tokens;
    EXPECT_LE(steps_of(epoch, 2048), 3 * kStepsInEpoch) << tokens;
  }
}

/// 60 short records were one step once.
TEST(SmallData, TinySetsHaveShortBins) {
  const EpochSize epoch = packed(60 * 100, 2048);
  EXPECT_EQ(target_batch(epoch, kSft), 1);
  EXPECT_EQ(bin_tokens(epoch, kSft, 1, 2048), kFewestBinTokens);
  EXPECT_EQ(steps_of(epoch, 2048), 24);
  EXPECT_EQ(bin_tokens(epoch, kSft, 1, 128), 128);  // never more than a bin may have
}

TEST(SmallData, WithoutPackingExamplesCount) {
  EXPECT_EQ(target_batch({.bins = 60, .tokens = 6000}, kSft), 1);
  EXPECT_EQ(target_batch({.bins = 400, .tokens = 40'000}, kSft), 8);
  EXPECT_EQ(target_batch({.bins = 9000, .tokens = 900'000}, kSft), config::kTargetGlobalBatch);
}

/// Texts are compared within a batch: a step of 60 queries had one of them once.
TEST(SmallData, TextsThatAreComparedAreTogether) {
  const auto queries = [](int64_t count) {
    return EpochSize{.bins = count, .tokens = 50 * count, .examples = count};
  };
  for (const auto& [count, together] :
       {std::pair<int64_t, int64_t>{3, 2}, {60, 7}, {512, 64}, {4000, 80}, {1'000'000, 128}})
    EXPECT_EQ(target_batch(queries(count), kEmbed), together) << count;
  EXPECT_EQ(target_batch(queries(60), kEmbed, /*is_counted=*/true), 60);
  EXPECT_EQ(target_batch(queries(60), kSft, true), config::kTargetGlobalBatch);
  const EpochSize in_bins{.bins = 50, .tokens = 50 * 2048, .examples = 2048};
  const int64_t bins = target_batch(in_bins, kEmbed);
  EXPECT_EQ(bins, 2);  // 64 queries of 50 tokens
  EXPECT_EQ(bin_tokens(in_bins, kEmbed, bins, 2048), 1600);
  EXPECT_EQ(bin_tokens(in_bins, kEmbed, 4, 2048), 800) << "each process has one";
}

TEST(SmallData, FewStepsAreWarnedOf) {
  config::RunConfig config = test::packed_run();
  EXPECT_FALSE(few_steps_warning(config, 10, false));
  const std::string few = few_steps_warning(config, 9, false).value();
  EXPECT_NE(few.find("only 9 optimizer steps"), std::string::npos) << few;
  EXPECT_NE(few.find("train.global_batch_size (16) or data.bin_tokens (512)"), std::string::npos)
      << few;
  config.train.max_steps = 9;
  EXPECT_FALSE(few_steps_warning(config, 9, false)) << "the user asked for them";
  const auto ends_in = [&](const char* advice) {
    return few_steps_warning(config, 9, true).value().ends_with(advice);
  };
  EXPECT_TRUE(ends_in("is 0; raise train.max_steps, or set train.warmup_from: first_step"));
  config.train.max_steps.reset();
  EXPECT_TRUE(ends_in("is 0; raise train.epochs, or set train.warmup_from: first_step"));
  config.train.learning_rate = 0;
  EXPECT_TRUE(ends_in("is 0; raise train.learning_rate"));
}

}  // namespace
}  // namespace sftrun::data
