#include "own_answers.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>

#include "answer_record.h"
#include "rollout_samples.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/data/json_lines.h"

namespace sftrun::engine {

OwnAnswers::OwnAnswers(const TurnWriterInputs& inputs)
    : in_(inputs), failure_(inputs.model.rank), writer_(make_turn_writer(inputs, failure_)) {}

/// What travels to all ranks.
JudgedAnswer OwnAnswers::kept_of(size_t index, const Answer& answer,
                                 const train::AskedExample& asked, bool is_sample) const {
  JudgedAnswer kept{.index = index, .answer = {}, .sample = {}};
  kept.answer.tokens = answer.token_ids;
  kept.answer.is_cut_short = !answer.stopped;
  for (const model::DrawnLogprob& logprob : answer.logprobs)
    *kept.answer.entropy += logprob.entropy;
  if (std::isnan(*kept.answer.entropy)) kept.answer.entropy.reset();  // of a server
  if (!is_sample) return kept;
  const std::vector<int32_t> prompt(asked.prompt.ids.begin(), asked.prompt.ids.end());
  kept.sample = data::parse_json_text(asked.record);
  kept.sample.update(record_of(answer));
  kept.sample["place"] = asked.place;
  const config::RolloutsConfig& rollouts = in_.config.train.rollouts;
  // A server reports the model's own distribution, whichever one it draws from.
  kept.sample.update(
      sample_of(answer, prompt, rollouts.changes_distribution() && !rollouts.is_by_server()));
  return kept;
}

train::Rollout OwnAnswers::write(int64_t step, const std::vector<train::AskedExample>& asked) {
  const config::TrainConfig& train = in_.config.train;
  const bool keeps_samples = keeps_rollout_samples(train, step);
  const double began = monotonic_seconds();
  std::vector<size_t> numbers(asked.size());
  std::iota(numbers.begin(), numbers.end(), size_t{0});
  std::vector<JudgedAnswer> own;
  const int code = writer_->write(
      {.name = fmt::format("step {} answers of the student", step + 1),
       .number = static_cast<uint64_t>(step),
       .step = step,
       .answers = numbers,
       .prompt = [&](size_t index) { return asked[index].prompt; },
       .max_new_tokens = [&](size_t index) { return asked[index].max_new_tokens; },
       .place = [&](size_t index) { return asked[index].place; },
       .on_answer =
           [&](size_t index, Answer&& answer) {
             const bool is_sample =
                 keeps_samples && index < static_cast<size_t>(train.rollouts.num_samples);
             own.push_back(kept_of(index, answer, asked[index], is_sample));
           }});
  train::Rollout rollout{.stop_exit_code = code, .answers = {}};
  if (code != 0) return rollout;
  JudgedByAll all =
      judged_by_all(in_.model.rank.comm(), code, own, asked.size(), /*has_logps=*/false);
  std::string lines;
  for (JudgedAnswer& one : all.answers) {
    if (!one.sample.is_null()) lines += to_json_text(one.sample) + "\n";
    rollout.answers.push_back(std::move(one.answer));
  }
  if (keeps_samples && in_.model.rank.is_main()) write_rollout_samples(in_.run_dir, step, lines);
  rollout.seconds = monotonic_seconds() - began;
  return rollout;
}

}  // namespace sftrun::engine
