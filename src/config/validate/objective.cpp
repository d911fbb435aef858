#include <fmt/format.h>

#include "choices.h"
#include "sftrun/config/server_url.h"
#include "sftrun/core/strings.h"
#include "validate/checks.h"

namespace sftrun::config::relations {
namespace {

std::string advice_on_format(const ObjectiveInfo& objective, ExampleForm form) {
  switch (form) {
    case ExampleForm::kPair:
      return fmt::format("remove format: {} reads records with \"chosen\" and \"rejected\"",
                         objective.name);
    case ExampleForm::kJudged:
      return fmt::format("remove format: {} reads answers behind a prompt, and their \"label\"",
                         objective.name);
    case ExampleForm::kSampled:
      return fmt::format("remove format: {} reads sampled answers with their \"reward\"",
                         objective.name);
    case ExampleForm::kClassed:
      return fmt::format(
          "remove format: {} reads a text, a prompt or a conversation, and its \"label\"",
          objective.name);
    case ExampleForm::kPrompt:
      return "remove format: with train.rollouts the records are prompts";
    case ExampleForm::kRetrieval:
      return fmt::format(
          "remove format: {} reads records with \"anchor\" (or \"query\") and \"positive\" (or "
          "\"pos\")",
          objective.name);
    case ExampleForm::kAnswer:
      break;
  }
  return fmt::format(
      "for pairs of answers set train.objective to {}; for other records remove "
      "format",
      objectives_for(ExampleForm::kPair));
}

/// Objectives on pairs read records with two answers, those on one answer the others, and those on
/// judged answers all but texts.
void check_formats(Checks& checks) {
  const ObjectiveInfo& objective = checks.run().train.objective_info();
  const ExampleForm form = checks.run().train.example_form();
  const auto judge = [&](RecordFormat format, const char* key) {
    if (format == RecordFormat::kAuto || format_info(format).gives(form)) return;
    checks.error(fmt::format("`{}` {} {}, but `train.objective` is {}", key,
                             std::string_view(key) == "data.format" ? "is" : "has the format",
                             word_of(format), objective.name),
                 {key, "train.objective"}, advice_on_format(objective, form));
  };
  judge(checks.run().data.format, "data.format");
  if (checks.trains())
    for (const DataSource& source : checks.run().data.train) judge(source.format, "data.train");
  for (const DataSource& source : checks.run().data.val) judge(source.format, "data.val");
}

std::string names_of_losses(std::span<const PreferenceLoss> losses) {
  std::vector<std::string> names;
  for (const PreferenceLoss loss : losses) names.emplace_back(loss_info(loss).name);
  return joined(names, " and ");
}

/// The losses are some that the objective takes, and the divergence one that they take.
void check_losses(Checks& checks) {
  const TrainConfig& train = checks.run().train;
  const ObjectiveInfo& objective = train.objective_info();
  if (objective.losses.empty()) return;
  const LossMixture losses = train.losses();
  const bool is_mixture = losses.shares.size() > 1 || losses.shares.front().weight != 1;
  if (objective.reads_samples() && is_mixture)
    checks.error(fmt::format("`train.loss_type` is {}, and {} has one loss, of the weight 1",
                             words_of(losses), objective.name),
                 {"train.loss_type", "train.objective"}, "write one of them alone");
  for (const LossShare& share : losses.shares) {
    const PreferenceLossInfo& loss = loss_info(share.loss);
    if (!objective.takes_loss(share.loss))
      checks.error(fmt::format("`train.loss_type` has {}, which `train.objective` {} does not take",
                               loss.name, objective.name),
                   {"train.loss_type", "train.objective"},
                   fmt::format("the losses of {} are {}", objective.name,
                               names_of_losses(objective.losses)));
    if (train.f_divergence != FDivergence::kReverseKl && !loss.is_of_difference)
      checks.error(fmt::format("`train.f_divergence` is {}, and the loss {} is no function of the "
                               "difference of two scores, for which alone it is defined",
                               word_of(train.f_divergence), loss.name),
                   {"train.f_divergence", "train.loss_type"}, "remove f_divergence");
    if (share.loss == PreferenceLoss::kExoPair && train.label_smoothing == 0.0)
      checks.error("`train.label_smoothing` is 0, with which the loss exo_pair is infinite",
                   {"train.label_smoothing", "train.loss_type"},
                   fmt::format("remove label_smoothing: {} is the default then", kExoSmoothing));
  }
}

/// Answers of a server are those of the adapter on the server's base, in its own distribution.
void check_engine(Checks& checks) {
  const RunConfig& run = checks.run();
  const RolloutsConfig& rollouts = run.train.rollouts;
  if (!rollouts.is_by_server()) return;
  if (const std::string fault = fault_of_server_url(rollouts.engine, UrlEnd::kPath); !fault.empty())
    return checks.error(
        fmt::format("`train.rollouts.engine` is `{}`, {}",
                    excerpt(without_credentials(rollouts.engine)), fault),
        {"train.rollouts.engine"},
        "write self, or the address of a server such as http://127.0.0.1:8000/v1; a token is read "
        "from the variable that train.rollouts.engine_token_variable names");
  if (run.tuning.mode != TuningMode::kLora && run.tuning.mode != TuningMode::kQlora)
    checks.error(
        "`train.rollouts.engine` is a server, which can be given an adapter and no whole "
        "weights, and `tuning.mode` is not lora or qlora",
        {"train.rollouts.engine", "tuning.mode"}, "use tuning.mode: lora, or engine: self");
  if (rollouts.batch_size > RolloutsConfig::kMaxRequests)
    checks.error(
        fmt::format("`train.rollouts.batch_size` is {}, and a device sends at most {} requests at "
                    "the same time to the server of `train.rollouts.engine`",
                    rollouts.batch_size, RolloutsConfig::kMaxRequests),
        {"train.rollouts.batch_size", "train.rollouts.engine"}, "lower batch_size");
  if (run.train.has_rollouts() && rollouts.changes_distribution())  // a teacher needs none
    checks.error(
        "`train.rollouts.engine` is a server, which reports the log-probabilities of the "
        "model's own distribution, and the answers are drawn from another one",
        {"train.rollouts.engine", "train.rollouts.temperature", "train.rollouts.top_p",
         "train.rollouts.top_k", "train.rollouts.min_p"},
        "use temperature 1 without top_p, top_k and min_p, or engine: self");
}

void check_rollouts(Checks& checks) {
  const RunConfig& run = checks.run();
  const TrainConfig& train = run.train;
  if (!train.writes_answers()) return;
  check_engine(checks);
  if (train.rollouts.max_new_tokens >= run.model.max_seq_len)
    checks.error(fmt::format("`train.rollouts.max_new_tokens` is {}, which leaves no token of "
                             "`model.max_seq_len` {} for prompts",
                             train.rollouts.max_new_tokens, run.model.max_seq_len),
                 {"train.rollouts.max_new_tokens", "model.max_seq_len"},
                 "raise model.max_seq_len, or lower max_new_tokens");
  if (train.has_own_answers() && train.kd_alpha > 0 && train.kd_alpha < 1)
    checks.warn(
        fmt::format("train.kd_alpha is {:g}, and with train.rollouts.share the rest of the loss is "
                    "a cross-entropy whose labels are partly the student's own words, from which "
                    "it learns nothing: set train.kd_alpha to 1, as GKD has it",
                    train.kd_alpha),
        "train.kd_alpha");
  if (!train.has_rollouts()) return;
  const bool weighs_answers = train.sampling_correction == SamplingCorrection::kSequenceMask ||
                              train.sampling_correction == SamplingCorrection::kSequenceTruncate;
  if (train.rollouts.changes_distribution() && weighs_answers)
    checks.warn(
        "train.rollouts draws from another distribution than the model's own, and "
        "train.sampling_correction weighs whole answers by the ratio of the two, which is near 0 "
        "or "
        "masked for long ones: use temperature 1 without cuts, or token_truncate",
        "train.rollouts.temperature");
}

}  // namespace

void check_objective(Checks& checks) {
  const TrainConfig& train = checks.run().train;
  if (train.objective_info().reads_judgements() && train.desirable_weight == 0 &&
      train.undesirable_weight == 0)
    checks.error(
        "`train.desirable_weight` and `train.undesirable_weight` are 0: nothing is trained",
        {"train.desirable_weight", "train.undesirable_weight"}, "set one of them above 0");
  if (train.beta == 0.0 && !train.objective_info().reads_samples() &&
      train.objective_info().reads("train.beta"))
    checks.error("`train.beta` is 0, with which nothing is compared", {"train.beta"},
                 "write a number above 0, such as 0.1, or remove it");
  check_rollouts(checks);
  check_formats(checks);
  check_losses(checks);
  checks.error(objective_refusals(checks.run()));
}

}  // namespace sftrun::config::relations
