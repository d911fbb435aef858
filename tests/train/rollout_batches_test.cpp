#include "sftrun/train/rollout_batches.h"

#include <gtest/gtest.h>

#include "by_name.h"
#include "sftrun/core/error.h"
#include "sftrun/train/trainer.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "tiny_run.h"

namespace sftrun::train {
namespace {

constexpr int64_t kPrompts = 6, kAnswers = 2;

/// Prompts of 3, 4, … tokens, all of which count as labelled.
data::Dataset prompts_of_lengths() {
  std::vector<data::Example> examples;
  for (int64_t i = 0; i < kPrompts; ++i) {
    data::Example example{.record = i, .line = i + 1, .record_text = "{}"};
    for (int64_t token = 0; token < 3 + i; ++token) example.tokens.push_back(10);
    example.labels.assign(example.tokens.size(), 10);
    example.labels.back() = data::kIgnoreIndex;
    examples.push_back(std::move(example));
  }
  data::DatasetPart part{.name = "p.jsonl", .files = {{.path = "p.jsonl"}}, .end = kPrompts};
  data::DatasetStats stats;
  return {data::ExampleStore::in_memory(examples), {part}, stats, "f"};
}

config::RunConfig rollout_config() {
  config::RunConfig config;
  config.train.objective = config::Objective::kGrpo;
  config.train.rollouts.reward = {{.label = "exact_match"}};
  config.train.rollouts.n = kAnswers;
  config.train.rollouts.max_new_tokens = 5;
  config.train.epochs = 2;
  config.train.global_batch_size.value = 4;
  config.data.packing = false;
  return config;
}

RolloutAnswer answer_of(std::vector<int32_t> tokens, std::optional<double> reward) {
  RolloutAnswer answer{.drawn_logps = std::vector<float>(tokens.size(), -1),
                       .entropy = static_cast<double>(tokens.size()),
                       .reward = reward,
                       .values = {reward}};
  answer.tokens = std::move(tokens);
  return answer;
}

TEST(RolloutBatches, AStepHasTheAnswersToItsPrompts) {
  const data::Dataset prompts = prompts_of_lengths();
  std::vector<std::vector<int64_t>> asked;
  RolloutBatches batches(rollout_config(), prompts,
                         [&](int64_t, const std::vector<int64_t>& of_step) {
                           asked.push_back(of_step);
                           Rollout rollout;
                           rollout.answers = {answer_of({7, 8}, 1), answer_of({7}, 0),
                                              answer_of({9}, 0.5), answer_of({9, 9, 9}, 0.5)};
                           rollout.answers[3].is_cut_short = true;
                           return rollout;
                         });
  EXPECT_EQ(batches.total_steps(), 6);
  EXPECT_EQ(batches.bins_in_epoch(), kPrompts * kAnswers);
  ASSERT_EQ(batches.prepare(0), 0);
  const data::StepBatch batch = batches.at(0);
  ASSERT_EQ(asked.front().size(), 2U);
  const int64_t first = prompts.examples().stored(asked[0][0]).length;
  EXPECT_EQ(batch.bins.size(), 4U);
  EXPECT_EQ(batch.label_tokens, 7);
  const data::ExampleView one = batch.examples[0];
  ASSERT_EQ(one.size(), first + 2);
  EXPECT_EQ(one.token(first), 7);
  EXPECT_FALSE(one.has_label(first - 1));
  EXPECT_TRUE(one.has_label(first) && one.has_label(first + 1));
  EXPECT_TRUE(batch.examples.values_of(0).empty()) << "the model is the one that sampled";
  ASSERT_NE(batch.examples.advantages(), nullptr);
  const std::vector<double>& advantages = *batch.examples.advantages();
  EXPECT_NEAR(advantages[0], 0.5 / (std::sqrt(0.5) + 1e-4), 1e-12);
  EXPECT_NEAR(advantages[1], -advantages[0], 1e-12);
  EXPECT_EQ(advantages[2], 0) << "equal rewards say nothing";
  EXPECT_TRUE(batch.examples.stored(3).is_cut_short);
  EXPECT_EQ(batches.file_of(batch, 2).path, "p.jsonl");
  EXPECT_EQ(batch.examples.stored(2).number, asked[0][1] + 1) << "the line of its prompt";
  const auto metrics = by_name(batch.metrics);
  EXPECT_DOUBLE_EQ(metrics.at("frac_reward_zero_std"), 0.5);
  EXPECT_NEAR(metrics.at("reward_std"), std::sqrt(0.5) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(metrics.at("rewards/exact_match/mean"), 0.5);
  EXPECT_DOUBLE_EQ(metrics.at("entropy"), 1);
  EXPECT_DOUBLE_EQ(metrics.at("completions/max_length"), 3);
  EXPECT_DOUBLE_EQ(metrics.at("completions/min_length"), 1);
  EXPECT_NEAR(metrics.at("completions/mean_terminated_length"), 4.0 / 3, 1e-12);
}

/// Of a batch's examples.
std::vector<std::vector<float>> old_logps_of(const data::StepBatch& batch) {
  std::vector<std::vector<float>> logps;
  for (int64_t i = 0; i < batch.examples.size(); ++i)
    logps.push_back(batch.examples.values_of(i).of(data::LabelColumn::kOldLogp));
  return logps;
}

/// Two steps on the same answers, the second in another process.
TEST(RolloutBatches, StepsShareAnswersAcrossACheckpoint) {
  const data::Dataset prompts = prompts_of_lengths();
  config::RunConfig config = rollout_config();
  config.train.rollouts.num_iterations = 2;
  std::vector<int64_t> sampled;
  const auto write = [&](int64_t step, const std::vector<int64_t>&) {
    sampled.push_back(step);
    Rollout rollout;
    rollout.seconds = 3;
    rollout.answers = {answer_of({7, 8}, 1), answer_of({7}, 0), answer_of({9}, std::nullopt),
                       answer_of({9, 9, 9}, 0.5)};
    return rollout;
  };
  RolloutBatches batches(config, prompts, write);
  EXPECT_EQ(batches.total_steps(), 12) << "two epochs of three batches";
  EXPECT_DOUBLE_EQ(batches.epochs_after(5), 1);
  EXPECT_TRUE(batches.ends_epoch(5) && !batches.ends_epoch(4));
  EXPECT_TRUE(batches.wants_label_logps(0) && !batches.wants_label_logps(1));
  EXPECT_TRUE(batches.position().is_null());
  ASSERT_EQ(batches.prepare(0), 0);
  const data::StepBatch first = batches.at(0);
  EXPECT_EQ(first.examples.size(), 3) << "the answer without a reward does not count";
  EXPECT_TRUE(first.examples.values_of(0).empty()) << "the model still is the one that sampled";
  EXPECT_DOUBLE_EQ(by_name(first.metrics).at("rollouts/seconds"), 3);
  batches.keep_label_logps({-1, -2, -3, -4, -5, -6});
  const auto position = nlohmann::ordered_json::parse(batches.position().dump());

  RolloutBatches again(config, prompts, write, position);
  for (RolloutBatches* one : {&batches, &again}) {
    ASSERT_EQ(one->prepare(1), 0);
    const data::StepBatch second = one->at(1);
    EXPECT_EQ(old_logps_of(second),
              (std::vector<std::vector<float>>{{-1, -2}, {-3}, {-4, -5, -6}}));
    EXPECT_EQ(second.examples[0].token(3), first.examples[0].token(3));
    EXPECT_EQ(*second.examples.advantages(), *first.examples.advantages());
    EXPECT_DOUBLE_EQ(by_name(second.metrics).at("rollouts/seconds"), 0);
    EXPECT_TRUE(one->position().is_null()) << "the next step has other answers";
    ASSERT_EQ(one->prepare(2), 0);
    EXPECT_TRUE(one->at(2).examples.values_of(0).empty());
  }
  EXPECT_EQ(sampled, (std::vector<int64_t>{0, 2, 2}));
}

TEST(RolloutBatches, AStopBeforeNewAnswersLeavesNoPosition) {
  const data::Dataset prompts = prompts_of_lengths();
  config::RunConfig config = rollout_config();
  config.train.rollouts.num_iterations = 2;
  RolloutBatches batches(config, prompts, [&](int64_t step, const std::vector<int64_t>&) {
    Rollout rollout;
    rollout.stop_exit_code = step == 2 ? 75 : 0;
    if (step == 0) rollout.answers.assign(4, answer_of({7}, 1));
    return rollout;
  });
  for (const int64_t step : {0, 1}) {
    ASSERT_EQ(batches.prepare(step), 0);
    batches.at(step);
  }
  EXPECT_EQ(batches.prepare(2), 75);
  EXPECT_TRUE(batches.position().is_null());
}

TEST(RolloutBatches, AnEpochAsksEachPromptOnce) {
  const data::Dataset prompts = prompts_of_lengths();
  std::vector<int64_t> asked;
  RolloutBatches batches(rollout_config(), prompts,
                         [&](int64_t, const std::vector<int64_t>& of_step) {
                           asked.insert(asked.end(), of_step.begin(), of_step.end());
                           Rollout rollout;
                           for (size_t i = 0; i < of_step.size() * kAnswers; ++i)
                             rollout.answers.push_back(answer_of({7}, static_cast<double>(i % 2)));
                           return rollout;
                         });
  for (int64_t step = 0; step < 3; ++step) {
    ASSERT_EQ(batches.prepare(step), 0);
    batches.at(step);
    EXPECT_EQ(batches.ends_epoch(step), step == 2);
  }
  std::sort(asked.begin(), asked.end());
  EXPECT_EQ(asked, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_DOUBLE_EQ(batches.epochs_after(2), 1);
}

TEST(RolloutBatches, AnswersWithoutARewardAreLeftOut) {
  const data::Dataset prompts = prompts_of_lengths();
  std::optional<double> reward = 1;
  RolloutBatches batches(rollout_config(), prompts, [&](int64_t, const std::vector<int64_t>&) {
    Rollout rollout;
    rollout.answers = {answer_of({7}, reward), answer_of({7}, std::nullopt),
                       answer_of({7}, std::nullopt), answer_of({7, 7}, std::nullopt)};
    return rollout;
  });
  ASSERT_EQ(batches.prepare(0), 0);
  const data::StepBatch batch = batches.at(0);
  EXPECT_EQ(batch.bins.size(), 1U);
  EXPECT_EQ(batch.examples.advantages()->front(), 0) << "it is alone in its group";
  reward.reset();
  ASSERT_EQ(batches.prepare(1), 0);
  const data::StepBatch silent = batches.at(1);
  EXPECT_EQ(silent.bins.size(), 4U);
  EXPECT_EQ(*silent.examples.advantages(), (std::vector<double>(4, 0))) << "nothing is learnt";
}

TEST(RolloutBatches, AServerSaysNoEntropy) {
  const data::Dataset prompts = prompts_of_lengths();
  config::RunConfig config = rollout_config();
  config.train.rollouts.engine = "http://127.0.0.1:8000/v1";
  RolloutBatches batches(config, prompts, [&](int64_t, const std::vector<int64_t>&) {
    Rollout rollout;
    for (int i = 0; i < 4; ++i) rollout.answers.push_back(answer_of({7, 7}, i));
    rollout.answers.back().entropy.reset();
    return rollout;
  });
  ASSERT_EQ(batches.prepare(0), 0);
  const data::StepBatch batch = batches.at(0);
  for (const auto& [name, value] : batch.metrics) EXPECT_NE(name, "entropy");
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_TRUE(batch.examples.stored(i).has(data::LabelColumn::kSampledLogp))
        << "the loss corrects for the server's log-probabilities";
  RolloutFaults faults;
  for (int step = 0; step < 9; ++step)
    EXPECT_TRUE(faults.add({.entropy = std::nullopt}, {}).empty());
}

TEST(RolloutBatches, AStopLeavesNoBatch) {
  const data::Dataset prompts = prompts_of_lengths();
  RolloutBatches batches(rollout_config(), prompts, [](int64_t, const std::vector<int64_t>&) {
    return Rollout{.stop_exit_code = 130, .answers = {}};
  });
  EXPECT_EQ(batches.prepare(0), 130);
}

TEST(RolloutBatches, OtherDistributionsAreCorrectedFor) {
  const data::Dataset prompts = prompts_of_lengths();
  config::RunConfig config = rollout_config();
  config.train.rollouts.temperature = 0.7;
  RolloutBatches batches(config, prompts, [](int64_t, const std::vector<int64_t>&) {
    Rollout rollout;
    for (int i = 0; i < 4; ++i) rollout.answers.push_back(answer_of({7, 8}, i % 2));
    return rollout;
  });
  ASSERT_EQ(batches.prepare(0), 0);
  const data::StepBatch batch = batches.at(0);
  EXPECT_EQ(batch.examples.values_of(0).of(data::LabelColumn::kSampledLogp),
            (std::vector<float>{-1, -1}));
  EXPECT_TRUE(batch.examples.values_of(0).of(data::LabelColumn::kOldLogp).empty());
}

/// What the run is tried with before its first step, and what its memory is planned for.
TEST(RolloutBatches, TheLongestIsTheLongestPromptWithTheLongestAnswer) {
  const data::Dataset prompts = prompts_of_lengths();
  const RolloutBatches batches(rollout_config(), prompts, {});
  const data::StepBatch longest = batches.longest(3);
  EXPECT_EQ(longest.bins.size(), 3U);
  EXPECT_EQ(longest.examples.stored(0).length, 8U + 5U);
  EXPECT_EQ(longest.examples.stored(0).label_tokens, 5U);
  EXPECT_EQ(longest.tokens, 3 * 13);
  EXPECT_EQ(batches.micro_batch_tokens(3, false), longest.tokens);
}

/// What writes the answers says so, and the step behind them is training again.
TEST(RolloutBatches, AStepTellsWhenItsAnswersAreWritten) {
  const test::TemporaryDirectory dir;
  test::TinyRun run(dir.path());
  const config::RunConfig rollouts = rollout_config();
  std::vector<std::string> told;
  config::TrainConfig& train = run.inputs.config.train;
  train.objective = rollouts.train.objective;
  train.rollouts = rollouts.train.rollouts;
  train.beta = 0;
  train.epochs = rollouts.train.epochs;
  train.global_batch_size.value = train.grad_accum.value = 4;
  train.max_steps = 2;
  const data::Dataset prompts = prompts_of_lengths();
  RolloutBatches batches(run.inputs.config, prompts, [&](int64_t, const auto&) {
    told.emplace_back("answers");
    Rollout rollout;
    for (int i = 0; i < 4; ++i) rollout.answers.push_back(answer_of({7, 8}, i % 2));
    return rollout;
  });
  run.inputs.batches = &batches;
  run.inputs.hooks.on_event = [&](const TrainEvent& event) { told.emplace_back(event.phase); };
  Trainer(run.inputs).run();
  ASSERT_GE(std::count(told.begin(), told.end(), "answers"), 2);
  for (size_t i = 0; i + 2 < told.size(); ++i) {
    if (told[i] != "answers") continue;
    EXPECT_EQ(told[i + 1], "training") << "before the passes";
    EXPECT_EQ(told[i + 2], "training") << "after the step";
  }
}

TEST(RolloutFaults, AreNamedOnceWhenTheyLast) {
  RolloutFaults faults;
  const auto good = [&] { return faults.add({.entropy = 1}, {.frac_reward_zero_std = 0.5}); };
  const auto silent = [&] {
    return faults.add({.entropy = 1, .clipped_ratio = 1}, {.frac_reward_zero_std = 1});
  };
  EXPECT_TRUE(good().empty());
  int64_t named = 0;
  for (int step = 0; step < 9; ++step) named += std::ssize(silent());
  EXPECT_EQ(named, 2) << "equal rewards, and answers that were cut short";
  EXPECT_TRUE(good().empty());
  for (int step = 0; step < 5; ++step) named += std::ssize(silent());
  EXPECT_EQ(named, 4) << "it came back";
}

TEST(RolloutFaults, ASureModelHasCollapsed) {
  RolloutFaults faults;
  faults.add({.entropy = 1}, {});
  std::vector<std::string> warnings;
  for (int step = 0; step < 5; ++step)
    for (std::string& warning : faults.add({.entropy = 0.01}, {})) warnings.push_back(warning);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("has fallen from 1 to 0.01"), std::string::npos) << warnings[0];
  RolloutFaults sure_from_the_start;
  for (int step = 0; step < 9; ++step)
    EXPECT_TRUE(sure_from_the_start.add({.entropy = 0.01}, {}).empty());
}

}  // namespace
}  // namespace sftrun::train
