#include "run_messages.h"

#include <gtest/gtest.h>

#include "sftrun/core/file.h"
#include "support/packed_run.h"
#include "support/temporary_directory.h"

namespace sftrun::engine {
namespace {

config::RunConfig run_on_two_ranks() {
  config::RunConfig config = test::packed_run();
  config.parallel.axes.dp_replicate = 2;
  return config;
}

TEST(RunMessages, TrainableParametersAreAShareOfAll) {
  EXPECT_EQ(trainable_line(1000, 9000, /*is_frozen=*/true, 4, "lora"),
            "trainable parameters: 1000 of 10.0k (10.00%) in 4 tensors (lora)");
  EXPECT_EQ(trainable_line(9000, 9000, /*is_frozen=*/false, 7, "full"),
            "trainable parameters: 9000 of 9000 (100.00%) in 7 tensors (full)");
}

TEST(RunMessages, LimitsOfImagesNameWhoReadsThem) {
  const test::TemporaryDirectory model;
  write_file_atomically(model / "preprocessor_config.json",
                        R"({"image_processor_type": "Qwen2VLImageProcessor"})");
  const auto lines = [&](const images::ImageCaps& caps, bool is_adapter) {
    return lines_of_limits(caps, model.path(), is_adapter);
  };
  EXPECT_TRUE(lines({}, true).empty());
  const auto both = lines({.max_pixels = 200704, .longest_edge = 448}, /*is_adapter=*/true);
  ASSERT_EQ(both.size(), 2U);
  EXPECT_TRUE(both[0].starts_with("data.max_image_pixels 200704: in the adapter's files"))
      << both[0];
  EXPECT_TRUE(both[1].starts_with("data.image_longest_edge 448: sftrun uses it")) << both[1];
  EXPECT_NE(both[1].find("have no such limit"), std::string::npos) << both[1];
  const auto of_model = lines({.max_pixels = 200704}, /*is_adapter=*/false);
  ASSERT_EQ(of_model.size(), 1U);
  EXPECT_NE(of_model[0].find("which transformers and vLLM read"), std::string::npos);
}

TEST(RunMessages, StepsNameWhatAStepHolds) {
  config::RunConfig config = run_on_two_ranks();
  EXPECT_EQ(steps_line(config, {.total_steps = 30}),
            "30 steps: batch_size 2 x grad_accum 4 x world_size 2 = 16 packed sequences of 512 "
            "tokens per step");
  config.data.packing = false;
  EXPECT_EQ(steps_line(config, {.total_steps = 30}),
            "30 steps: batch_size 2 x grad_accum 4 x world_size 2 = 16 examples per step");
  config.train.global_batch_size.value = 1;
  config.parallel.axes = {};
  EXPECT_EQ(steps_line(config, {.total_steps = 1}),
            "1 step: batch_size 2 x grad_accum 4 x world_size 1 = 1 example per step");
}

TEST(RunMessages, AStepHasNoMoreThanAnEpoch) {
  const config::RunConfig config = run_on_two_ranks();
  RunSize size{.total_steps = 3, .bins_in_epoch = 16};
  EXPECT_TRUE(steps_line(config, size).ends_with(" = 16 packed sequences of 512 tokens per step"));
  size.bins_in_epoch = 15;
  EXPECT_EQ(steps_line(config, size),
            "3 steps: batch_size 2 x grad_accum 4 x world_size 2 = 16; an epoch has 15 packed "
            "sequences of 512 tokens, which are one step");
  EXPECT_FALSE(large_batch_warning(config, size)) << "all sizes are automatic";
  size.asks_for_batch = true;
  EXPECT_EQ(large_batch_warning(config, size).value(),
            "the batch is larger than an epoch: train.global_batch_size is 16, and an epoch has 15 "
            "packed sequences, all of them in one step; lower train.grad_accum or "
            "train.global_batch_size");
  size.bins_in_epoch = 16;
  EXPECT_FALSE(large_batch_warning(config, size));
}

TEST(RunMessages, MemoryIsShownBesideThePlan) {
  constexpr uint64_t kMiB = 1 << 20;
  observe::RunReport report;
  report.planned = {.base = 100 * kMiB, .activations_peak = 100 * kMiB};
  report.ranks = {{.bytes = {.base = 190 * kMiB}},
                  {.bytes = {.base = 100 * kMiB, .gradients = kMiB}}};
  EXPECT_EQ(
      memory_line(report),
      "peak memory for tensors: 200.00 MiB planned; rank 0 used 190.00 MiB (95%), rank 1 used "
      "101.00 MiB (50%)");
  for (uint64_t rank = 2; rank < 16; ++rank)
    report.ranks.push_back({.bytes = {.base = (110 + rank) * kMiB}});
  EXPECT_EQ(
      memory_line(report),
      "peak memory for tensors: 200.00 MiB planned; rank 0 used 190.00 MiB (95%), rank 1 used "
      "101.00 MiB (50%), the other 14 are between");
}

TEST(RunMessages, Pipeline) {
  config::RunConfig config;
  config.train.batch_size.value = 2;
  config.train.grad_accum.value = 4;
  config.train.global_batch_size.value = 16;
  config.parallel.axes = {.pp = 4, .dp_replicate = 2};
  EXPECT_NE(steps_line(config, {.total_steps = 30})
                .find("2 x grad_accum 4 x 2 pipelines of 4 stages = 16"),
            std::string::npos);
  config.parallel.axes = {.pp = 4};
  EXPECT_NE(steps_line(config, {.total_steps = 30}).find("x 1 pipeline of 4 stages"),
            std::string::npos);
  config.parallel.axes = {.pp = 2, .dp_shard = 2, .tp = 2};
  EXPECT_NE(steps_line(config, {.total_steps = 30}).find("x 2 groups of 4 devices"),
            std::string::npos);
}

}  // namespace
}  // namespace sftrun::engine
