#include "run_log.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/units.h"
#include "sftrun/kernels/profile_range.h"
#include "sftrun/train/optimizer.h"
#include "step_values.h"

namespace sftrun::train {
namespace {

constexpr int64_t kBeforeAll = -1;  // drops the events of step 0, too

}  // namespace

RunLog::RunLog(const TrainerInputs& inputs)
    : in_(inputs), progress_(inputs.batches->total_steps()) {}

void RunLog::open(const TrainState& state) {
  const std::filesystem::path metrics = in_.run_dir / "metrics.jsonl",
                              folder = in_.run_dir / "tensorboard";
  remove_temporaries(in_.run_dir);
  remove_temporaries(folder);
  const int64_t kept_steps = in_.resume_from ? state.step : kBeforeAll;
  const int64_t last = observe::truncate_metrics_to_step(metrics, kept_steps,
                                                         /*keeps_evaluation=*/!state.evaluation_due)
                           .value_or(0);
  if (in_.resume_from && last < state.step)
    log::warn(
        "{} ends with step {}, and the checkpoint is of step {}: the lines between are lost, "
        "and the report will have a gap",
        metrics.string(), last, state.step);
  metrics_ = observe::MetricsWriter(metrics);
  if (!in_.config.output.tensorboard) return;
  make_directories(folder);
  events_ = observe::EventWriter(folder, kept_steps);
  events_.text("config", "```yaml\n" + config::to_yaml(in_.config) + "```", state.step);
  events_.hparams(config::to_json(in_.config), state.step);
}

void RunLog::tell(const char* phase, int64_t steps_done) {
  event_.phase = phase;
  event_.step = steps_done;
  event_.total_steps = in_.batches->total_steps();
  in_.hooks.on_event(event_);
}

void RunLog::note(const HostNumbers& numbers) {
  event_.memory_bytes = static_cast<uint64_t>(numbers.peak_memory_bytes);
  event_.memory_used_bytes = static_cast<uint64_t>(numbers.memory_used_bytes);
  event_.cpu_percent = numbers.cpu_utilization;
  if (numbers.gpu_utilization >= 0) event_.gpu_percent = numbers.gpu_utilization;
}

/// A server that has another base, or not the adapter, writes answers that are not the model's.
void RunLog::warn_of_server(int64_t done, const observe::NamedValues& objective) {
  constexpr double kFar = 0.5;  // nats; with another dtype they are some hundredths apart
  const config::RolloutsConfig& rollouts = in_.config.train.rollouts;
  const auto difference = value_of(objective, "sampling/sampling_logp_difference/mean");
  if (!rollouts.is_by_server() || !difference) return;
  const bool was_far = std::exchange(is_server_far_, *difference > kFar);
  if (!is_server_far_ || was_far) return;
  log::warn(
      "step {}: the server's log-probabilities of its answers are {:.2g} from those of the model, "
      "mean over tokens: the answers are hardly the model's own, so that their rewards say little "
      "of what the model itself writes. Does {} serve the base model of the run, with its adapter, "
      "and in a similar dtype? (train.rollouts.engine, docs/grpo.md)",
      done, *difference, rollouts.engine);
}

void RunLog::add_step(const QueuedStep& queued, const StepReport& report) {
  const kernels::WorkRange writing(in_.hooks.activity, Work::kMetrics);
  const config::ShownMetric shown = in_.config.train.shown_metric();
  const int64_t done = queued.step + 1;
  progress_.add({done, report.loss, report.grad_norm, queued.learning_rate, queued.batch.tokens,
                 report.seconds, report.aux_loss, shown.word,
                 value_of(report.objective, shown.metric)});
  event_.loss = report.loss;
  event_.tokens_per_second = progress_.tokens_per_second();
  event_.eta_s = progress_.seconds_left();
  tell("training", done);
  if (!in_.is_main()) return;
  if (report.skipped) {
    log::info(
        "step {}: gradients overflowed in fp16; the update was skipped and the loss scale halved "
        "to {:g}",
        done, report.loss_scale.value());
  }
  const observe::TrainMetrics metrics = metrics_of(queued, report);
  metrics_.write(metrics);
  write_events(metrics);
  warn_of_server(done, report.objective);
  const int64_t every = std::max<int64_t>(1, in_.config.train.logging_steps);
  if (done % every == 0 || done == in_.batches->total_steps()) log::info("{}", progress_.line());
}

namespace {

/// Of train.part_learning_rates, scaled as the schedule scales all rates.
observe::NamedValues part_rates(const config::RunConfig& config, double learning_rate) {
  observe::NamedValues rates;
  const LearningRateRatios ratios = LearningRateRatios::from(config.train);
  for (const ModelPart part : kModelParts)
    if (config.train.part_learning_rates[part])
      rates.emplace_back(fmt::format("learning_rate/{}", part_name(part)),
                         learning_rate * ratios.of_part[part]);
  return rates;
}

int64_t num_examples(const data::StepBatch& batch) {
  int64_t count = 0;
  for (const data::Bin& bin : batch.bins) count += std::ssize(bin);
  return count;
}

}  // namespace

observe::TrainMetrics RunLog::metrics_of(const QueuedStep& queued, const StepReport& report) const {
  observe::TrainMetrics m;
  m.step = queued.step + 1;
  m.epoch = queued.epochs;
  m.loss = report.loss;
  m.objective = report.objective;
  m.aux_loss = report.aux_loss;
  m.grad_norm = report.grad_norm;
  m.loss_scale = report.loss_scale;
  m.learning_rate = queued.learning_rate;
  m.part_rates = part_rates(in_.config, queued.learning_rate);
  m.label_tokens = queued.batch.label_tokens;
  m.tokens = queued.batch.tokens;
  m.examples = num_examples(queued.batch) / in_.config.train.sequences();
  m.tokens_per_second = static_cast<double>(m.tokens) / report.seconds;
  m.step_seconds = report.seconds;
  m.peak_memory_bytes = report.peak_memory_bytes;
  m.loss_per_rank = report.loss_per_rank;
  m.gpu_utilization = report.gpu_utilization;
  m.parts = report.parts;
  m.memory_used_bytes = report.memory_used_bytes;
  m.cpu_utilization = report.cpu_utilization;
  return m;
}

void RunLog::write_events(const observe::TrainMetrics& m) {
  const int64_t done = m.step;
  events_.scalar("train/loss", m.loss, done);
  for (const auto& [name, value] : m.objective) events_.scalar("train/" + name, value, done);
  if (m.loss_scale) events_.scalar("train/loss_scale", *m.loss_scale, done);
  if (m.aux_loss) events_.scalar("train/aux_loss", *m.aux_loss, done);
  events_.scalar("train/grad_norm", m.grad_norm, done);
  events_.scalar("train/learning_rate", m.learning_rate, done);
  for (const auto& [name, rate] : m.part_rates) events_.scalar("train/" + name, rate, done);
  events_.scalar("train/tokens_per_second", m.tokens_per_second, done);
  events_.scalar("train/step_seconds", m.step_seconds, done);
  events_.scalar("train/epoch", m.epoch, done);
  if (m.parts) {
    for (const auto& [name, seconds] : observe::named_parts(*m.parts))
      events_.scalar(fmt::format("time/{}", name), seconds, done);
  }
  for (size_t rank = 0; rank < m.loss_per_rank.size(); ++rank) {
    if (std::isfinite(m.loss_per_rank[rank]))
      events_.scalar(fmt::format("rank_{}/loss", rank), m.loss_per_rank[rank], done);
    events_.scalar(fmt::format("rank_{}/peak_memory_bytes", rank),
                   static_cast<double>(m.peak_memory_bytes[rank]), done);
    events_.scalar(fmt::format("rank_{}/memory_used_bytes", rank),
                   static_cast<double>(m.memory_used_bytes[rank]), done);
    events_.scalar(fmt::format("rank_{}/cpu_utilization", rank), m.cpu_utilization[rank], done);
    if (!m.gpu_utilization.empty())
      events_.scalar(fmt::format("rank_{}/gpu_utilization", rank), m.gpu_utilization[rank], done);
  }
  events_.flush();
}

void RunLog::add_evaluation(const observe::EvalMetrics& m, const EvalResult& result,
                            const AnswerEvaluation& answers, const std::string& best_metric) {
  metrics_.write(m);
  write_events(m, answers.samples);
  log::info("{}{}", answers.rewards.empty() ? line_of(m, result) : line_of_rewards(m, answers),
            best_metric.empty() ? "" : fmt::format(", the best {} so far", best_metric));
  for (const auto& [name, loss] : m.losses) log::info("  {}: eval_loss {:.4f}", name, loss);
  in_.hooks.on_run_event({"evaluation", m.step, m.to_json()});
}

void RunLog::write_events(const observe::EvalMetrics& m, const std::string& samples) {
  if (std::isfinite(m.eval_loss)) events_.scalar("eval/loss", m.eval_loss, m.step);
  if (m.eval_perplexity) events_.scalar("eval/perplexity", *m.eval_perplexity, m.step);
  for (const auto& [name, value] : m.objective) events_.scalar("eval/" + name, value, m.step);
  for (const auto& [name, loss] : m.losses) events_.scalar("eval/loss/" + name, loss, m.step);
  if (m.answers) {
    events_.scalar("eval/rouge1", m.answers->rouge1, m.step);
    events_.scalar("eval/rouge2", m.answers->rouge2, m.step);
    events_.scalar("eval/rouge_l", m.answers->rouge_l, m.step);
    events_.scalar("eval/exact_match", m.answers->exact_match, m.step);
  }
  if (!samples.empty()) events_.text("eval/answers", samples, m.step);
  events_.flush();
}

namespace {

/// "12 label tokens", or where they have weights "12 label tokens of weight 11.5".
std::string terms_text(const EvalResult& result, const config::ObjectiveInfo& objective) {
  if (objective.terms != config::LossTerms::kLabelTokens ||
      result.num_terms == static_cast<double>(result.num_labels))
    return counted(std::llround(result.num_terms), objective.term_word());
  return fmt::format("{} of weight {:.6g}", counted(result.num_labels, objective.term_word()),
                     result.num_terms);
}

}  // namespace

std::string RunLog::line_of_rewards(const observe::EvalMetrics& m,
                                    const AnswerEvaluation& answers) const {
  const std::optional<double> reward = value_of(answers.rewards, "reward");
  return fmt::format("step {}/{} eval_reward {} ({}, {})", m.step, in_.batches->total_steps(),
                     reward ? fmt::format("{:.4f}", *reward) : "unknown: no answer was judged",
                     counted(answers.num_answers, "answer"), format_duration(answers.seconds));
}

std::string RunLog::line_of(const observe::EvalMetrics& m, const EvalResult& result) const {
  const config::ObjectiveInfo& objective = in_.config.train.objective_info();
  std::string line =
      fmt::format("step {}/{} eval_loss {:.4f}", m.step, in_.batches->total_steps(), m.eval_loss);
  if (m.eval_perplexity) line += fmt::format(" perplexity {:.3f}", *m.eval_perplexity);
  if (const auto [metric, word] = in_.config.train.shown_metric(); !metric.empty())
    line += fmt::format(" {} {:.3f}", word, value_of(m.objective, metric).value_or(0));
  line += fmt::format(" ({}, {})", terms_text(result, objective), format_duration(result.seconds));
  if (const auto accuracy = value_of(m.objective, "token_accuracy"))
    line += fmt::format(" eval_token_accuracy {:.4f}", *accuracy);
  if (m.answers) {
    line += fmt::format(" eval_rouge_l {:.4f} eval_exact_match {:.4f} ({}, {})", m.answers->rouge_l,
                        m.answers->exact_match, counted(m.answers->num_answers, "answer"),
                        format_duration(m.answers->seconds));
  }
  return line;
}

}  // namespace sftrun::train
