#include "sftrun/train/rollout_batches.h"

#include <algorithm>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/data/advantages.h"

namespace sftrun::train {

RolloutBatches::RolloutBatches(const config::RunConfig& config, const data::Dataset& prompts,
                               Write write, const nlohmann::ordered_json& position)
    : rollouts_(config.train.rollouts),
      scale_rewards_(config.train.scale_rewards),
      prompts_(prompts),
      plan_(plan_of_steps(config, prompts)),
      steps_(plan_, config.train),
      write_(std::move(write)),
      longest_prompt_(longest_example(prompts)) {
  if (!position.is_object()) return;
  next_step_ = position.at("next_step").get<int64_t>();
  sampled_.first_step = first_step_of(next_step_);
  for (const nlohmann::ordered_json& answer : position.at("answers"))
    sampled_.rollout.answers.push_back(rollout_answer_of(answer));
  sampled_.logps = position.at("logps").get<std::vector<float>>();
}

nlohmann::ordered_json RolloutBatches::position() const {
  const bool goes_on = sampled_.first_step >= 0 && next_step_ > sampled_.first_step &&
                       first_step_of(next_step_) == sampled_.first_step;
  if (!goes_on) return nullptr;
  nlohmann::ordered_json answers = nlohmann::ordered_json::array();
  for (const RolloutAnswer& answer : sampled_.rollout.answers)
    answers.push_back(to_json(answer, rollouts_.keeps_sampled_logps()));
  return {{"next_step", next_step_}, {"answers", std::move(answers)}, {"logps", sampled_.logps}};
}

bool RolloutBatches::wants_label_logps(int64_t step) const {
  return rollouts_.num_iterations > 1 && step == first_step_of(step);
}

std::vector<int64_t> RolloutBatches::prompts_of(int64_t step) const {
  const StepPosition position = steps_.position(step);
  std::vector<int64_t> prompts;
  for (const data::Bin& bin :
       plan_.global_batch(position.epoch, position.step_in_epoch / rollouts_.num_iterations))
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

/// Of the answers that have a reward.
std::vector<data::Example> RolloutBatches::examples_of(const std::vector<int64_t>& prompts) const {
  const auto n = static_cast<size_t>(rollouts_.n);
  const std::vector<RolloutAnswer>& answers = sampled_.rollout.answers;
  SFTRUN_CHECK_EQ(answers.size(), prompts.size() * n);
  std::vector<data::Example> examples;
  for (size_t i = 0; i < answers.size(); ++i)
    if (answers[i].reward)
      examples.push_back(example_of(answers[i], *answers[i].reward, prompts[i / n], i / n));
  if (examples.empty())  // equal rewards teach nothing
    for (size_t i = 0; i < answers.size(); ++i)
      examples.push_back(example_of(answers[i], /*reward=*/0, prompts[i / n], i / n));
  return examples;
}

data::StepBatch RolloutBatches::batch_of(const std::vector<int64_t>& prompts) const {
  data::StepBatch batch;
  std::vector<data::Example> examples = examples_of(prompts);
  for (const int64_t prompt : prompts) batch.files.push_back(prompts_.file_of(prompt));
  auto logps = sampled_.logps.begin();
  for (size_t i = 0; i < examples.size(); ++i) {
    batch.bins.push_back({static_cast<int64_t>(i)});
    batch.tokens += std::ssize(examples[i].tokens);
    batch.label_tokens += examples[i].label_tokens;
    if (sampled_.logps.empty()) continue;
    SFTRUN_CHECK(sampled_.logps.end() - logps >= examples[i].label_tokens);
    const auto end = logps + examples[i].label_tokens;
    examples[i].values.of(data::LabelColumn::kOldLogp).assign(logps, end);
    logps = end;
  }
  batch.examples = data::ExampleStore::in_memory(examples);
  batch.examples.set_advantages(data::advantages_of(batch.examples, scale_rewards_).of_examples);
  return batch;
}

/// New answers.   @return 0, or the exit code of a stop
int RolloutBatches::sample(int64_t step) {
  const std::vector<int64_t> prompts = prompts_of(step);
  Rollout rollout = write_(step, prompts);
  if (rollout.stop_exit_code != 0) return rollout.stop_exit_code;
  sampled_ = {.first_step = step, .rollout = std::move(rollout), .logps = {}};
  const std::vector<RolloutAnswer>& answers = sampled_.rollout.answers;
  if (std::ranges::none_of(answers,
                           [](const RolloutAnswer& one) { return one.reward.has_value(); }))
    log::warn(
        "no reward function has a value for any answer to {}{}: this step trains on none of them",
        prompts_.place_of(prompts.front()),
        prompts.size() > 1 ? " and the step's other prompts" : "");
  for (const std::string& warning :
       faults_.add(statistics_of(answers), statistics_of_groups(answers, rollouts_.n)))
    log::warn("step {}: {}", step + 1, warning);
  return 0;
}

/// Further steps on the same answers spend no time on them.
observe::NamedValues RolloutBatches::metrics_of_step(int64_t step) const {
  const Rollout& rollout = sampled_.rollout;
  observe::NamedValues metrics = metrics_of(statistics_of_groups(rollout.answers, rollouts_.n));
  for (auto& metric : metrics_of(statistics_of(rollout.answers), rollout.answers, rollouts_.reward))
    metrics.push_back(std::move(metric));
  const bool is_first = step == sampled_.first_step;
  metrics.emplace_back("rollouts/seconds", is_first ? rollout.seconds : 0);
  metrics.emplace_back("rollouts/reward_seconds", is_first ? rollout.reward_seconds : 0);
  return metrics;
}

int RolloutBatches::prepare(int64_t step) {
  if (sampled_.first_step != first_step_of(step))
    if (const int code = sample(step)) return code;
  prepared_ = batch_of(prompts_of(step));
  prepared_.deal = dealer().deal(prepared_.examples, prepared_.bins);
  prepared_.metrics = metrics_of_step(step);
  prepared_step_ = step;
  return 0;
}

data::StepBatch RolloutBatches::at(int64_t step) {
  SFTRUN_CHECK_EQ(prepared_step_, step);
  prepared_step_ = -1;
  next_step_ = step + 1;
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
