#include "sftrun/config/rollouts.h"

#include "config_test_base.h"
#include "sftrun/config/best_metric.h"
#include "sftrun/config/binding.h"
#include "sftrun/config/idle_settings.h"
#include "sftrun/config/yaml_text.h"
#include "support/expect_error.h"

/// `train.rollouts`.
namespace sftrun::config {
namespace {

using test::expect_error;

constexpr const char* kRollouts = R"(
train:
  objective: grpo
  rollouts:
    n: 4
    max_new_tokens: 64
    reward:
      - number
      - {name: length, maximum: 48, unit: tokens, weight: 0.5}
)";

class Rollouts : public ConfigTest {};

TEST_F(Rollouts, AreReadAndWritten) {
  const RunConfig config = load(kRollouts).config;
  EXPECT_TRUE(config.train.has_rollouts());
  EXPECT_EQ(config.train.example_form(), ExampleForm::kPrompt);
  ASSERT_EQ(config.train.rollouts.reward.size(), 2U);
  EXPECT_EQ(config.train.rollouts.reward[1].weight, 0.5);
  EXPECT_EQ(config.train.rollouts.n, 4);
  EXPECT_EQ(best_metric(config.train), "eval_reward");
  const RunConfig again = from_json(to_json(config));
  EXPECT_EQ(again.train.rollouts.reward, config.train.rollouts.reward);
  const auto file = write("again.yaml", to_yaml(config));
  EXPECT_EQ(load_config(file, {}).config.train.rollouts.reward, config.train.rollouts.reward);
}

TEST_F(Rollouts, AreOffWithoutRewards) {
  const RunConfig config = load("train: {objective: grpo, rollouts: {reward: []}}").config;
  EXPECT_FALSE(config.train.has_rollouts());
  EXPECT_EQ(config.train.example_form(), ExampleForm::kSampled);
  const RunConfig other = load("train: {objective: sft, rollouts: {reward: number}}").config;
  EXPECT_FALSE(other.train.has_rollouts()) << "an idle setting, which is warned of";
}

TEST_F(Rollouts, MistakesInRewardsAreNamed) {
  expect_error<ConfigError>([&] { load("train: {objective: grpo, rollouts: {reward: [numbr]}}"); },
                            {"`train.rollouts.reward` cannot be used: unknown reward `numbr`",
                             "did you mean `number`?", "run.yaml:3:"});
  expect_error<ConfigError>([&] { load("train: {rollouts: {n: 1}}"); }, {"train.rollouts.n"});
}

TEST_F(Rollouts, AServerIsSentSomeRequestsAtATime) {
  const std::vector<std::string> engine = {"train.rollouts.engine=http://localhost:8000/v1"};
  const auto with = [&](const char* batch) {
    std::vector<std::string> overrides = engine;
    overrides.emplace_back(batch);
    return load(kRollouts, overrides).config.train.rollouts.batch_size;
  };
  EXPECT_EQ(with("train.rollouts.batch_size=256"), 256);
  expect_error<ConfigError>([&] { with("train.rollouts.batch_size=257"); },
                            {"at most 256 requests", "lower batch_size"});
}

TEST_F(Rollouts, AnAnswerLeavesRoomForItsPrompt) {
  expect_error<ConfigError>(
      [&] { load(kRollouts, {"model.max_seq_len=64"}); },
      {"`train.rollouts.max_new_tokens` is 64, which leaves no token", "model.max_seq_len"});
}

/// How programs and servers are reached does not change the answers.
TEST_F(Rollouts, AResumedRunMayReachRewardsOtherwise) {
  const auto identity = [&](const std::string& reward) {
    return identity_settings(load("train: {objective: grpo, rollouts: {reward: [" + reward + "]}}")
                                 .config)["train.rollouts.reward"];
  };
  EXPECT_EQ(identity("{name: program, command: ./j, timeout: 3, restarts: 0}"),
            identity("{name: program, command: ./j}"));
  EXPECT_EQ(identity("{name: http, url: 'http://a/b', retries: 0}"),
            identity("{name: http, url: 'http://c/d'}"));
  EXPECT_NE(identity("{name: program, command: ./j}"), identity("{name: program, command: ./k}"));
  EXPECT_NE(identity("number"), identity("{name: number, weight: 2}"));
}

TEST_F(Rollouts, AStepHasWholeGroups) {
  for (const int world_size : {1, 2, 3}) {
    LoadedConfig loaded = load(kRollouts, {"train.rollouts.n=5"});
    resolve(loaded, "run.yaml", world_size);
    EXPECT_EQ(*loaded.config.train.global_batch_size.value % 5, 0);
    EXPECT_EQ(*loaded.config.train.global_batch_size.value % world_size, 0);
    EXPECT_FALSE(loaded.config.data.packing);
    EXPECT_EQ(loaded.config.train.max_completion_length, 64);
  }
  LoadedConfig loaded = load(kRollouts, {"train.global_batch_size=6"});
  expect_error<ConfigError>([&] { resolve(loaded, "run.yaml", 1); },
                            {"6 answers", "not a multiple of train.rollouts.n 4",
                             "set train.global_batch_size to 4 or 8"});
  loaded = load(kRollouts, {"train.batch_size=2", "train.grad_accum=3"});
  expect_error<ConfigError>([&] { resolve(loaded, "run.yaml", 1); },
                            {"6 answers", "set train.grad_accum to 2"});
}

TEST_F(Rollouts, TheBestModelIsChosenByARewardAndNotByALoss) {
  const std::vector<std::string> best = {"data.val=v.jsonl", "train.eval_strategy=epoch",
                                         "train.load_best_model_at_end=true"};
  auto with = [&](const std::string& metric) {
    std::vector<std::string> all = best;
    all.push_back("train.metric_for_best_model=" + metric);
    return load(kRollouts, all);
  };
  EXPECT_EQ(best_metric(with("rewards/length/mean").config.train), "eval_rewards/length/mean");
  expect_error<ConfigError>([&] { with("eval_loss"); },
                            {"not a metric of an evaluation", "eval_reward"});
}

}  // namespace
}  // namespace sftrun::config
