#include "run_forecast.h"

#include <gtest/gtest.h>

#include "sftrun/core/file.h"
#include "sftrun/data/small_data.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::app {
namespace {

/// Examples of `length` tokens each; of `records` only `read` were read.
data::DatasetTrial trial_of(int64_t records, int64_t read, int64_t length) {
  data::DatasetTrial trial;
  trial.is_whole = read == records;
  trial.num_records_estimated = records;
  trial.stats.num_records = trial.stats.num_examples = read;
  trial.stats.num_tokens = read * length;
  trial.lengths.assign(static_cast<size_t>(read), length);
  return trial;
}

config::RunConfig config_of() {
  config::RunConfig config;
  config.model.max_seq_len = 100;
  config.data.packing = false;
  config.data.train = {{.path = "train.jsonl"}};
  config.train.epochs = 2;
  config.train.batch_size.value = 2;
  config.train.grad_accum.value = 2;
  config.train.global_batch_size.value = 4;
  return config;
}

TEST(BatchRequests, StepsAreAutomaticIfNeitherSizeIsGiven) {
  config::TrainConfig asked;
  asked.batch_size = asked.grad_accum = asked.global_batch_size = {};
  EXPECT_TRUE(batch_request(asked).steps_are_auto);
  asked.batch_size.value = 3;
  EXPECT_TRUE(batch_request(asked).steps_are_auto);
  EXPECT_EQ(batch_request(asked).batch_size.value, 3);
  asked.grad_accum.value = 1;
  EXPECT_FALSE(batch_request(asked).steps_are_auto);
}

TEST(Forecasts, AreExactWhenAllRecordsWereRead) {
  const config::RunConfig config = config_of();
  const Forecast exact = forecast(config, {trial_of(10, 10, 7)}, {});
  EXPECT_TRUE(exact.is_exact);
  EXPECT_EQ(exact.steps_per_epoch, 3);  // of 4, 4 and 2 examples
  EXPECT_EQ(exact.steps, 6);
  EXPECT_EQ(exact.tokens_per_epoch, 70);
  EXPECT_EQ(exact.bin_tokens, 0);
}

TEST(Forecasts, CountEvaluations) {
  config::RunConfig config = config_of();
  config.train.eval_strategy = config::EvalStrategy::kEpoch;
  EXPECT_EQ(forecast(config, {trial_of(10, 10, 7)}, {}).evaluations, 2);
  config.train.max_steps = 7;  // of 3 in an epoch
  EXPECT_EQ(forecast(config, {trial_of(10, 10, 7)}, {}).evaluations, 3);
  config.train.eval_strategy = config::EvalStrategy::kSteps;
  config.train.eval_steps = 2;
  EXPECT_EQ(forecast(config, {trial_of(10, 10, 7)}, {}).evaluations, 4);
  EXPECT_EQ(forecast(config, {trial_of(1000, 10, 7)}, {}).evaluations, 4);
  config.train.max_steps.reset();
  EXPECT_EQ(forecast(config, {trial_of(1000, 10, 7)}, {}).evaluations, 0) << "not known";
}

TEST(Forecasts, AreEstimatedFromTheFirstRecords) {
  const config::RunConfig config = config_of();
  const Forecast estimated = forecast(config, {trial_of(1000, 100, 7)}, {});
  EXPECT_FALSE(estimated.is_exact);
  EXPECT_EQ(estimated.tokens_per_epoch, 7000);
  EXPECT_EQ(estimated.steps_per_epoch, 250);
  EXPECT_EQ(estimated.steps, 500);
}

TEST(Forecasts, AGivenNumberOfStepsCounts) {
  config::RunConfig config = config_of();
  config.train.max_steps = 17;
  EXPECT_EQ(forecast(config, {trial_of(10, 10, 7)}, {}).steps, 17);
}

TEST(Forecasts, HeldOutRecordsAreNotTrainedOn) {
  config::RunConfig config = config_of();
  config.data.val_split = 0.5;
  const Forecast half = forecast(config, {trial_of(1000, 1000, 7)}, {});
  EXPECT_FALSE(half.is_exact) << "which records are held out is not known";
  EXPECT_EQ(half.tokens_per_epoch, 3500);
  config.data.val_split = 200;
  EXPECT_EQ(forecast(config, {trial_of(1000, 1000, 7)}, {}).tokens_per_epoch, 5600);
}

TEST(Forecasts, WeightsRepeatExamples) {
  config::RunConfig config = config_of();
  config.data.train = {{.path = "a.jsonl", .weight = 3}, {.path = "b.jsonl"}};
  const Forecast mixed = forecast(config, {trial_of(10, 10, 5), trial_of(10, 10, 7)}, {});
  EXPECT_EQ(mixed.tokens_per_epoch, 220);
  EXPECT_EQ(mixed.steps_per_epoch, 10);  // of 40 examples
}

/// Packed sequences are not quite full, and the forecast packs what was read.
TEST(Forecasts, PackedSequencesLeaveRoom) {
  config::RunConfig config = config_of();
  config.data.packing = true;
  config.data.bin_tokens.value = 100;
  config.train.global_batch_size.value = 1;
  const Forecast exact = forecast(config, {trial_of(40, 40, 60)}, {});
  EXPECT_EQ(exact.bin_tokens, 100);
  EXPECT_EQ(exact.steps_per_epoch, 40) << "one example of 60 in each of 100";
  const Forecast estimated = forecast(config, {trial_of(400, 40, 60)}, {});
  EXPECT_EQ(estimated.steps_per_epoch, 400);
}

TEST(Forecasts, SizesThatTheDataDecideAreTheWorkers) {
  config::RunConfig config = config_of();
  config.model.max_seq_len = 2048;
  config.data.packing = true;
  config.data.bin_tokens = {};
  const BatchRequest request{.steps_are_auto = true, .max_micro_batch = 8, .dp_size = 1};
  const Forecast small = forecast(config, {trial_of(60, 60, 100)}, request);
  EXPECT_EQ(*small.sizes.global_batch_size.value, 1);
  EXPECT_EQ(small.bin_tokens, data::kFewestBinTokens);
  apply_sizes(small, config);
  EXPECT_EQ(config.train.global_batch_size.value, 1);
  EXPECT_EQ(config.data.bin_tokens.value, data::kFewestBinTokens);
  config::RunConfig other = config_of();
  Forecast estimated = small;
  estimated.is_exact = false;
  apply_sizes(estimated, other);
  EXPECT_EQ(other.train.global_batch_size.value, 4) << "only known sizes are written";
}

TEST(Forecasts, LinesSayWhatIsEstimated) {
  const test::TemporaryDirectory run_dir;
  config::RunConfig config = config_of();
  config.output.dir = run_dir.path().string();
  const auto lines = [&](int64_t read) {
    return lines_of(forecast(config, {trial_of(1000, read, 7)}, {}), config);
  };
  EXPECT_EQ(lines(1000).at(0), "steps: 500 optimizer steps, 250 per epoch; 4 examples per step");
  EXPECT_EQ(lines(100).at(0),
            "steps: about 500 optimizer steps, about 250 per epoch; 4 examples per step");
  EXPECT_EQ(lines(1000).at(1), "tokens: 7000 per epoch");
  EXPECT_TRUE(lines(1000).at(2).starts_with("duration: unknown"));
}

TEST(Forecasts, AStepHasNoMoreThanAnEpoch) {
  config::RunConfig config = config_of();
  const auto warning_of = [&](const Forecast& steps) {
    return data::large_batch_warning(config, steps.sizes, steps.bins_in_epoch, steps.is_exact);
  };
  EXPECT_FALSE(warning_of(forecast(config, {trial_of(4, 4, 7)}, {})));
  const Forecast few = forecast(config, {trial_of(3, 3, 7)}, {});
  EXPECT_EQ(lines_of(few, config).at(0),
            "steps: 2 optimizer steps, 1 per epoch; 3 examples per step");
  EXPECT_EQ(warning_of(few).value(),
            "the batch is larger than an epoch: train.global_batch_size is 4, and an epoch has 3 "
            "examples, all of them in one step; lower train.grad_accum or train.global_batch_size");
  config.train.grad_accum.value = 500;
  config.train.global_batch_size.value = 1000;
  const Forecast estimated = forecast(config, {trial_of(80, 10, 7)}, {});
  EXPECT_NE(warning_of(estimated).value().find("has about 80 examples"), std::string::npos);
  EXPECT_TRUE(lines_of(estimated, config).at(0).ends_with("; about 80 examples per step"));
}

TEST(AutoValues, AreThoseOfTheDeviceAndTheFiles) {
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kQlora;
  config.tuning.quant = config::Quant::kAuto;
  config.model.dtype = config::DTypeChoice::kAuto;
  resolve_auto(config, {.knows_form = false}, /*on_gpu=*/false);
  EXPECT_EQ(config.tuning.quant, config::Quant::kAuto) << "the files are not known";
  EXPECT_NE(config.model.dtype, config::DTypeChoice::kAuto);
  resolve_auto(config, {.knows_form = true}, /*on_gpu=*/false);
  EXPECT_EQ(config.tuning.quant, config::quant_of(QuantFormat::kNf4));
  config.model.dtype = config::DTypeChoice::kFp16;
  EXPECT_THROW(resolve_auto(config, {}, /*on_gpu=*/false), ConfigError);
}

TEST(Forecasts, HaveRoomForAnswersOfTheStudent) {
  config::RunConfig config = config_of();
  config.train.objective = config::Objective::kDistill;
  config.train.rollouts.max_new_tokens = 20;
  EXPECT_EQ(forecast(config, {trial_of(10, 10, 7)}, {}).tokens_of_bin, 7);
  config.train.rollouts.share = 0.25;
  const Forecast found = forecast(config, {trial_of(10, 10, 7)}, {});
  EXPECT_EQ(found.tokens_of_bin, 27);
  EXPECT_EQ(forecast(config, {trial_of(10, 10, 90)}, {}).tokens_of_bin, 100) << "max_seq_len";
  EXPECT_NE(lines_of(found, config).back().find("those of 25% of the examples"), std::string::npos);
}

TEST(Forecasts, SayWhichAnswersTheModelWrites) {
  config::RunConfig config = config_of();
  config.train.objective = config::Objective::kGrpo;
  config.train.rollouts.reward = {{.label = "exact_match"}};
  config.train.rollouts.n = 2;
  const Forecast found = forecast(config, {trial_of(10, 10, 7)}, {});
  EXPECT_TRUE(lines_of(found, config).back().starts_with("answers: the model writes 2 to each"));
}

TEST(Forecasts, KnowWhichRecordsAreHeldOut) {
  config::RunConfig config = config_of();
  config.data.val_split = 4;
  data::DatasetTrial trial = trial_of(10, 10, 7);
  trial.records = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Forecast exact = forecast(config, {trial}, {});
  EXPECT_TRUE(exact.is_exact);
  EXPECT_EQ(exact.tokens_per_epoch, 42);
  EXPECT_EQ(exact.steps_per_epoch, 2);
  EXPECT_EQ(exact.tokens_of_bin, 7);
}

/// An estimate that may decide sizes is not shown as what the run will use.
TEST(Forecasts, SizesThatTheRunWillCountAreAuto) {
  config::RunConfig config = config_of();
  const BatchRequest request{.steps_are_auto = true, .max_micro_batch = 8, .dp_size = 1};
  const Forecast small = forecast(config, {trial_of(500, 100, 7)}, request);
  EXPECT_FALSE(small.knows_sizes);
  config::RunConfig shown = config;
  apply_sizes(small, shown);
  EXPECT_TRUE(shown.train.batch_size.is_auto() && shown.train.global_batch_size.is_auto());
  const Forecast large = forecast(config, {trial_of(50'000, 100, 7)}, request);
  EXPECT_TRUE(large.knows_sizes);
  EXPECT_EQ(*large.sizes.global_batch_size.value, config::kTargetGlobalBatch);
}

}  // namespace
}  // namespace sftrun::app
