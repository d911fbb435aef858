#include "training_answers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "answer_scores.h"
#include "sftrun/config/best_metric.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/units.h"
#include "sftrun/model/generation_batch.h"
#include "sftrun/parallel/mesh_copy.h"
#include "shared_answers.h"

namespace sftrun::engine {
namespace {

constexpr size_t kSamples = 4;  // answers that are shown

model::SamplingOptions greedy(const config::TrainConfig& config) {
  return {.max_new_tokens = config.generation_max_new_tokens};
}

/// Whole seconds of long times.
std::string rounded(double seconds) {
  constexpr double kLong = 10;
  return format_duration(seconds < kLong ? seconds : std::round(seconds));
}

/// A block of Markdown that shows a text as it is.
std::string block(const std::string& title, const std::string& text) {
  std::string fence = "```";
  while (text.find(fence) != std::string::npos) fence += '`';
  return fmt::format("**{}**\n\n{}\n{}\n{}\n\n", title, fence, text, fence);
}

}  // namespace

/// One evaluation.
struct TrainingAnswers::Turn {
  int64_t step;
  double allowed_s, started_s;
  std::map<size_t, Answer> own;  // of this rank
};

TrainingAnswers::TrainingAnswers(const Inputs& inputs)
    : in_(inputs), model_(inputs.model), generator_(inputs.text, greedy(inputs.config), {}) {
  const data::ExampleStore& examples = in_.val.examples();
  const auto most =
      static_cast<size_t>(in_.config.generation_max_samples.value_or(examples.size()));
  for (int64_t i = 0; i < examples.size() && asked_.size() < most; ++i) {
    auto question = question_of(examples, i, *in_.text.tokenizer);
    if (!question) continue;
    asked_.push_back(static_cast<size_t>(i));
    questions_.emplace(static_cast<size_t>(i), std::move(*question));
  }
  num_first_ = std::min(
      asked_.size(), static_cast<size_t>(in_.config.generation_batch_size * model_.share().parts));
  if (asked_.empty() && config::is_judged_by_answers(in_.config)) {
    throw DataError(
        fmt::format("train.metric_for_best_model is {}, and no validation example has a prompt "
                    "before its answer",
                    config::best_metric(in_.config)),
        "data.val", "use eval_loss, or validation data with prompts and answers");
  }
  if (!model_.rank().is_main()) return;
  if (asked_.empty()) {
    log::warn(
        "train.predict_with_generate: no validation example has a prompt before its answer, so "
        "evaluation gives the loss only");
    return;
  }
  for (size_t i = 0; i < std::min(kSamples, asked_.size()); ++i)
    prompts_[asked_[i]] = in_.text.tokenizer->decode(
        {questions_.at(asked_[i]).prompt.ids.begin(), questions_.at(asked_[i]).prompt.ids.end()},
        /*skip_special_tokens=*/false);
}

void TrainingAnswers::rehearse() {
  if (asked_.empty()) return;
  size_t longest = 0;
  for (const auto& [example, question] : questions_)
    longest = std::max(longest, question.prompt.ids.size());
  const auto answer_tokens =
      static_cast<size_t>(std::max<int64_t>(0, in_.config.generation_max_new_tokens));
  const std::string lack = model_.lack_of_memory(
      {.rows = std::min(asked_.size(), static_cast<size_t>(in_.config.generation_batch_size)),
       .length = longest + answer_tokens});
  if (lack.empty()) return;
  constexpr const char* kFix =
      "lower train.generation_batch_size or train.generation_max_new_tokens, or remove "
      "train.predict_with_generate and measure checkpoints with `sftrun eval`";
  if (config::is_judged_by_answers(in_.config))
    throw NoMemoryForAnswers(lack, "train.predict_with_generate", kFix);
  if (model_.rank().is_main())
    log::warn("{}; evaluations give the loss only: {} (train.predict_with_generate)", lack, kFix);
  asked_.clear();
}

void TrainingAnswers::leave_out(const std::set<int64_t>& lost) {
  std::erase_if(asked_,
                [&](size_t example) { return lost.contains(static_cast<int64_t>(example)); });
  for (const int64_t example : lost) prompts_.erase(static_cast<size_t>(example));
  num_first_ = std::min(num_first_, asked_.size());
}

train::AnswerEvaluation TrainingAnswers::evaluate(int64_t step, double allowed_s,
                                                  const std::set<int64_t>& lost) {
  leave_out(lost);
  if (asked_.empty()) return {};
  const at::NoGradGuard no_grad;
  Turn turn{.step = step, .allowed_s = allowed_s, .started_s = monotonic_seconds(), .own = {}};
  train::AnswerEvaluation evaluation;
  const double first_s = seconds_per_answer_ * static_cast<double>(num_first_);
  if (!has_time(turn, first_s, "even the first answers take")) return evaluation;
  {
    const AnsweringModel::Whole whole(model_);
    evaluation.stop_exit_code = answer_in_time(turn);
  }
  const auto answers = evaluation.stop_exit_code == 0
                           ? answers_of_all_ranks(model_.rank().comm(), turn.own)
                           : std::map<size_t, Answer>();
  evaluation.seconds = monotonic_seconds() - turn.started_s;
  if (answers.size() != asked_.size()) return evaluation;
  evaluation.scores = scores_of(answers);
  evaluation.scores->seconds = evaluation.seconds;
  for (const auto& [example, prompt] : prompts_)
    if (step == 0) before_[example] = answers.at(example).text;
  evaluation.samples = samples_of(answers);
  return evaluation;
}

/// Answers the first prompts, and the others if there is time for them.
/// @return 0, or the exit code of a stop
int TrainingAnswers::answer_in_time(Turn& turn) {
  const auto middle = asked_.begin() + static_cast<std::ptrdiff_t>(num_first_);
  const std::vector<size_t> first(asked_.begin(), middle), others(middle, asked_.end());
  if (const int code = answer(first, "first answers", turn)) return code;
  const double first_s = monotonic_seconds() - turn.started_s;
  seconds_per_answer_ = first_s / static_cast<double>(first.size());
  if (others.empty()) return 0;
  const double all_s = seconds_per_answer_ * static_cast<double>(asked_.size());
  if (!has_time(turn, all_s, "they take about")) return 0;
  const int code = answer(others, "answers", turn);
  seconds_per_answer_ = (monotonic_seconds() - turn.started_s) / static_cast<double>(asked_.size());
  return code;
}

/// What rank 0 says, because the clocks of the ranks differ.
bool TrainingAnswers::has_time(Turn& turn, double seconds, const char* what) const {
  const double of_main = model_.rank().comm().all_gather(std::vector<double>{seconds})[0][0];
  if (of_main <= turn.allowed_s) return true;
  if (model_.rank().is_main()) {
    log::info(
        "step {}: the loss only, without the {}: {} {} at the measured {:.2g} s each, and {} are "
        "left (train.generation_time_budget {:g})",
        turn.step, counted(asked_.size(), "answer"), what, rounded(seconds), seconds_per_answer_,
        rounded(turn.allowed_s), in_.config.generation_time_budget);
  }
  return false;
}

int TrainingAnswers::answer(const std::vector<size_t>& examples, const std::string& name,
                            Turn& turn) {
  parallel::MeshCopy copy = model_.ranks_of_copy();
  return AnsweringModel::answer(
      {.name = fmt::format("step {} {}", turn.step, name),
       .rank = model_.rank(),
       .generator = generator_,
       .decoder = model_.decoder(),
       .copy = &copy,
       .batch_size = static_cast<size_t>(in_.config.generation_batch_size),
       .records = examples,
       .logs_end = false,
       .prompt = [this](size_t example) { return questions_.at(example).prompt; },
       .on_answer = [&](size_t example,
                        Answer&& given) { turn.own.emplace(example, std::move(given)); },
       .place =
           [this](size_t example) { return in_.val.place_of(static_cast<int64_t>(example)); }});
}

observe::AnswerMetrics TrainingAnswers::scores_of(const std::map<size_t, Answer>& answers) const {
  MeanAnswerScores scores;
  for (const auto& [example, answer] : answers)
    scores.add(score_answer(questions_.at(example).reference, answer.text));
  const AnswerScores mean = scores.mean();
  return {.rouge1 = mean.rouge1,
          .rouge2 = mean.rouge2,
          .rouge_l = mean.rouge_l,
          .exact_match = mean.exact_match,
          .num_answers = scores.count()};
}

/// Prompt, reference and answer of a few examples.
std::string TrainingAnswers::samples_of(const std::map<size_t, Answer>& answers) const {
  std::string text;
  for (const auto& [example, prompt] : prompts_) {
    text += block("prompt", prompt) + block("reference", questions_.at(example).reference) +
            block("answer", answers.at(example).text);
    if (const auto before = before_.find(example); before != before_.end())
      text += block("answer before the first step", before->second);
    text += "---\n\n";
  }
  return text;
}

}  // namespace sftrun::engine
