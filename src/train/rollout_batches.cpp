#include "sftrun/train/rollout_batches.h"

#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/data/advantages.h"

namespace sftrun::train {
RolloutBatches::RolloutBatches(const config::RunConfig& config, const data::Dataset& prompts,
                               Write write)
    : rollouts_(config.train.rollouts),
      scale_rewards_(config.train.scale_rewards),
      prompts_(prompts),
      plan_(plan_of_steps(config, prompts)),
      steps_(plan_, config.train.epochs, config.train.max_steps),
      write_(std::move(write)),
      longest_prompt_(longest_example(prompts)) {}

std::vector<int64_t> RolloutBatches::prompts_of(int64_t step) const {
  const StepPosition position = steps_.position(step);
  std::vector<int64_t> prompts;
  for (const data::Bin& bin : plan_.global_batch(position.epoch, position.step_in_epoch))
    prompts.insert(prompts.end(), bin.begin(), bin.end());
  return prompts;
}

/// @param place of the prompt in the step: answers to it are a group
data::Example RolloutBatches::example_of(const RolloutAnswer& answer, double reward, int64_t prompt,
                                         size_t place) const {
  const data::ExampleView asked = prompts_.examples()[prompt];
  const auto length = static_cast<size_t>(asked.size());
  data::Example example{.record = asked.stored->record,
                        .file = static_cast<int32_t>(place),
                        .line = asked.stored->number,
                        .label_tokens = answer.num_own(),
                        .answer_begin = asked.size(),
                        .score = reward,
                        .score_kind = data::ScoreKind::kReward,
                        .group = 1,
                        .is_cut_short = answer.is_cut_short};
  for (int64_t i = 0; i < asked.size(); ++i) example.tokens.push_back(asked.token(i));
  example.tokens.insert(example.tokens.end(), answer.tokens.begin(), answer.tokens.end());
  example.labels.assign(example.tokens.size(), data::kIgnoreIndex);
  for (size_t i = length; i < example.tokens.size(); ++i)
    if (answer.owns(i - length)) example.labels[i - 1] = example.tokens[i];
  if (rollouts_.keeps_sampled_logps())
    example.values.of(data::LabelColumn::kSampledLogp) = answer.drawn_logps;
  if (asked.stored->num_media > 0) example.media = prompts_.examples().media_of(prompt);
  return example;
}

data::StepBatch RolloutBatches::batch_of(const Rollout& rollout,
                                         const std::vector<int64_t>& prompts) const {
  const auto n = static_cast<size_t>(rollouts_.n);
  SFTRUN_CHECK_EQ(rollout.answers.size(), prompts.size() * n);
  data::StepBatch batch;
  std::vector<data::Example> examples;
  for (size_t i = 0; i < rollout.answers.size(); ++i)
    if (rollout.answers[i].reward)
      examples.push_back(
          example_of(rollout.answers[i], *rollout.answers[i].reward, prompts[i / n], i / n));
  if (examples.empty()) {  // equal rewards teach nothing
    log::warn(
        "no reward function has a value for any answer to {}{}: nothing is learnt in this step",
        prompts_.place_of(prompts.front()),
        prompts.size() > 1 ? " and the step's other prompts" : "");
    for (size_t i = 0; i < rollout.answers.size(); ++i)
      examples.push_back(example_of(rollout.answers[i], /*reward=*/0, prompts[i / n], i / n));
  }
  for (const int64_t prompt : prompts) batch.files.push_back(prompts_.file_of(prompt));
  for (size_t i = 0; i < examples.size(); ++i) {
    batch.bins.push_back({static_cast<int64_t>(i)});
    batch.tokens += std::ssize(examples[i].tokens);
    batch.label_tokens += examples[i].label_tokens;
  }
  batch.examples = data::ExampleStore::in_memory(examples);
  batch.examples.set_advantages(data::advantages_of(batch.examples, scale_rewards_).of_examples);
  return batch;
}

int RolloutBatches::prepare(int64_t step) {
  const std::vector<int64_t> prompts = prompts_of(step);
  const Rollout rollout = write_(step, prompts);
  if (rollout.stop_exit_code != 0) return rollout.stop_exit_code;
  prepared_ = batch_of(rollout, prompts);
  prepared_.deal = dealer().deal(prepared_.examples, prepared_.bins);
  const AnswerStatistics all = statistics_of(rollout.answers);
  const GroupStatistics groups = statistics_of_groups(rollout.answers, rollouts_.n);
  observe::NamedValues& metrics = prepared_.metrics;
  metrics = metrics_of(groups);
  for (auto& metric : metrics_of(all, rollout.answers, rollouts_.reward))
    metrics.push_back(std::move(metric));
  metrics.emplace_back("rollouts/seconds", rollout.seconds);
  metrics.emplace_back("rollouts/reward_seconds", rollout.reward_seconds);
  for (const std::string& warning : faults_.add(all, groups))
    log::warn("step {}: {}", step + 1, warning);
  prepared_step_ = step;
  return 0;
}

data::StepBatch RolloutBatches::at(int64_t step) {
  SFTRUN_CHECK_EQ(prepared_step_, step);
  prepared_step_ = -1;
  return std::exchange(prepared_, {});
}

data::StepBatch RolloutBatches::longest(int64_t num_bins) const {
  const int64_t length = micro_batch_tokens(1, /*of_longest=*/true);
  data::Example answer{.label_tokens = rollouts_.max_new_tokens,
                       .answer_begin = longest_prompt_,
                       .score_kind = data::ScoreKind::kReward,
                       .group = 1};
  answer.tokens.assign(static_cast<size_t>(length), 0);
  answer.labels.assign(static_cast<size_t>(length), data::kIgnoreIndex);
  for (int64_t i = longest_prompt_; i < length; ++i) answer.labels[static_cast<size_t>(i - 1)] = 0;
  if (rollouts_.keeps_sampled_logps())
    answer.values.of(data::LabelColumn::kSampledLogp)
        .assign(static_cast<size_t>(rollouts_.max_new_tokens), 0);
  data::StepBatch batch = batch_of_equal(answer, num_bins, /*documents_of_bin=*/1);
  batch.examples.set_advantages(std::vector<double>(static_cast<size_t>(num_bins), 1));
  batch.files.push_back(prompts_.file_of(0));
  return batch;
}

int64_t RolloutBatches::micro_batch_tokens(int64_t num_bins, bool /*of_longest*/) const {
  return num_bins * (longest_prompt_ + rollouts_.max_new_tokens);
}

}  // namespace sftrun::train
