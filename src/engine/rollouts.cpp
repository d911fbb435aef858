#include "rollouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>

#include "conversations.h"
#include "rollout_samples.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/data/json_lines.h"
#include "sftrun/train/batches.h"

namespace sftrun::engine {
namespace {

/// The number of evaluations among those of steps.
constexpr uint64_t kOfEvaluations = std::numeric_limits<uint64_t>::max();

reward::Surroundings surroundings_of(const TurnWriterInputs& run) {
  reward::Surroundings surroundings;
  surroundings.should_stop = [&rank = run.model.rank] { return rank.stop_exit_code() != 0; };
  surroundings.has_user_turns =
      run.config.train.rollouts.chat.value_or(run.text.chat_template != nullptr);
  return surroundings;
}

}  // namespace

void require_judgeable(const config::RunConfig& config, const data::Dataset& prompts) {
  const reward::Rewards rewards(config.train.rollouts.reward, {});
  for (int64_t i = 0; i < prompts.examples().size(); ++i)
    rewards.check_record(data::parse_json_text(prompts.examples().record_text_of(i)),
                         prompts.place_of(i));
}

Rollouts::Rollouts(const Inputs& inputs)
    : in_(inputs),
      failure_(inputs.run.model.rank),
      writer_(make_turn_writer(inputs.run, failure_)),
      rewards_(inputs.run.config.train.rollouts.reward, surroundings_of(inputs.run)) {
  if (!in_.run.config.train.rollouts.environment.empty())
    environment_.emplace(in_.run.config, in_.run.text, surroundings_of(in_.run).should_stop);
}

void Rollouts::finish() {
  writer_->finish();
  rewards_.finish();
  if (environment_) environment_->finish();
}

void Rollouts::rehearse() {
  if (in_.run.model.rank.is_main()) rewards_.rehearse();
  const int64_t of_val = in_.val != nullptr ? train::longest_example(*in_.val) : 0;
  writer_->rehearse(std::max(train::longest_example(in_.train), of_val) +
                    in_.run.config.train.rollouts.max_new_tokens);
}

/// Answers and judgements of all ranks. A stop of one is one of all.
train::Rollout Rollouts::answer(PromptTask task) {
  const config::RolloutsConfig& rollouts = in_.run.config.train.rollouts;
  Rank& rank = in_.run.model.rank;
  train::Rollout rollout;
  const double began = monotonic_seconds();
  Conversations own;
  ConversationWriter writer(rollouts, rank, *writer_, environment_ ? &*environment_ : nullptr,
                            failure_);
  rollout.stop_exit_code = writer.write(task, own);
  if (rollout.stop_exit_code != 0) return rollout;
  const double written = monotonic_seconds();
  std::vector<JudgedAnswer> judged;
  rank.tell(launch::Status{.phase = launch::Phase::kJudging});
  const int code =
      failure_.guard([&] { judged = judge_conversations(rollouts, rewards_, task, own); });
  JudgedByAll all =
      judged_by_all(rank.comm(), code, judged, task.num_answers(), rollouts.keeps_sampled_logps());
  rollout.stop_exit_code = all.stop_exit_code;
  rollout.seconds = monotonic_seconds() - began;
  rollout.reward_seconds = rollout.seconds - (written - began);
  if (rollout.stop_exit_code != 0) return rollout;
  if (task.keeps_samples && rank.is_main()) keep_samples(task, all.answers);
  for (JudgedAnswer& one : all.answers) rollout.answers.push_back(std::move(one.answer));
  return rollout;
}

/// Lines as `sftrun generate` and `sftrun reward` write them.
void Rollouts::keep_samples(PromptTask& task, const std::vector<JudgedAnswer>& all) const {
  const config::RewardSpecs& specs = in_.run.config.train.rollouts.reward;
  std::string lines;
  for (const JudgedAnswer& one : all) {
    if (one.sample.is_null()) break;
    nlohmann::ordered_json line = task.record_of(one.index);
    line.update(one.sample);
    line["group"] = task.group_of(one.index);
    line["reward"] = train::json_of(one.answer.reward);
    for (size_t f = 0; f < specs.size(); ++f)
      line["rewards"][specs[f].label] = train::json_of(one.answer.values[f]);
    lines += to_json_text(line) + "\n";
  }
  write_rollout_samples(in_.run.run_dir, task.step, lines);
}

train::Rollout Rollouts::write(int64_t step, const std::vector<int64_t>& prompts) {
  const config::TrainConfig& train = in_.run.config.train;
  return answer({.name = fmt::format("step {} rollouts", step + 1),
                 .data = in_.train,
                 .prompts = prompts,
                 .n = static_cast<size_t>(train.rollouts.n),
                 .number = static_cast<uint64_t>(step),
                 .step = step,
                 .keeps_samples = keeps_rollout_samples(train, step)});
}

train::AnswerEvaluation Rollouts::evaluate(int64_t step) {
  std::vector<int64_t> prompts(static_cast<size_t>(in_.val->examples().size()));
  std::iota(prompts.begin(), prompts.end(), int64_t{0});
  const train::Rollout rollout = answer({.name = fmt::format("evaluation after step {}", step),
                                         .data = *in_.val,
                                         .prompts = prompts,
                                         .number = kOfEvaluations,
                                         .step = step});
  train::AnswerEvaluation evaluation{.stop_exit_code = rollout.stop_exit_code,
                                     .scores = std::nullopt,
                                     .rewards = {},
                                     .seconds = rollout.seconds,
                                     .num_answers = std::ssize(rollout.answers),
                                     .samples = {}};
  if (rollout.stop_exit_code != 0) return evaluation;
  const train::AnswerStatistics all = train::statistics_of(rollout.answers);
  if (all.mean_reward) evaluation.rewards.emplace_back("reward", *all.mean_reward);
  evaluation.rewards.emplace_back("completions/mean_length", all.mean_length);
  evaluation.rewards.emplace_back("completions/clipped_ratio", all.clipped_ratio);
  for (auto& metric : train::metrics_of(all, rollout.answers, in_.run.config.train.rollouts.reward))
    evaluation.rewards.push_back(std::move(metric));
  return evaluation;
}

}  // namespace sftrun::engine
