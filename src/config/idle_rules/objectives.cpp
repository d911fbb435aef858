#include <fmt/format.h>

#include <algorithm>

#include "idle_rules/rules.h"
#include "sftrun/config/teacher.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

/// Whether some objectives read the key, and that of the run does not.
IdleRule read_by_some_objectives(std::string_view setting) {
  return {{std::string(setting)}, [setting](const RunConfig& run, const RunFacts&) {
            if (run.train.objective_info().reads(setting)) return std::string();
            const std::vector<std::string> readers =
                objective_names([&](const ObjectiveInfo& info) { return info.reads(setting); });
            return fmt::format("{}: only {} {} it", with_objective(run), joined(readers, " and "),
                               readers.size() == 1 ? "reads" : "read");
          }};
}

/// Whether some losses read the key, and no loss of the run does.
IdleRule read_by_some_losses(std::string_view setting) {
  return {{std::string(setting)}, [setting](const RunConfig& run, const RunFacts&) {
            const LossMixture losses = run.train.losses();
            const bool is_read = std::any_of(
                losses.shares.begin(), losses.shares.end(),
                [&](const LossShare& share) { return loss_info(share.loss).reads(setting); });
            // Objectives with a loss of their own say themselves what they read.
            if (is_read || losses.shares.empty()) return std::string();
            return fmt::format(" with train.loss_type {}: only {} read it", words_of(losses),
                               losses_that_read(setting));
          }};
}

}  // namespace

std::string with_objective(const RunConfig& run) {
  return fmt::format(" with train.objective {}", run.train.objective_info().name);
}

IdleRules rules_of_objectives() {
  IdleRules rules;
  for (const std::string_view setting : objective_settings())
    rules.push_back(read_by_some_objectives(setting));
  for (const std::string_view setting : loss_settings())
    rules.push_back(read_by_some_losses(setting));
  rules.push_back({{"train.beta", "train.reference", "train.reference_logps", "train.ld_alpha"},
                   [](const RunConfig& run, const RunFacts&) {
                     const LossMixture losses = run.train.losses();
                     const bool compares = std::any_of(
                         losses.shares.begin(), losses.shares.end(), [](const LossShare& share) {
                           return !loss_info(share.loss).is_over_tokens;
                         });
                     return losses.shares.empty() || compares
                                ? std::string()
                                : fmt::format(" with train.loss_type {}, which compares nothing",
                                              words_of(losses));
                   }});
  rules.push_back({{"train.reference_logps"}, [](const RunConfig& run, const RunFacts&) {
                     return run.train.reference_model() == ReferenceModel::kPath
                                ? std::string(
                                      ": log-probabilities of a model that is named by "
                                      "its path are always computed before the first step")
                                : std::string();
                   }});
  rules.push_back(
      {{"train.reference"}, [](const RunConfig& run, const RunFacts&) {
         const bool is_idle =
             run.train.objective_info().needs_reference && !run.train.needs_reference();
         return is_idle ? std::string(": train.beta is 0, with which no reference model is read")
                        : std::string();
       }});
  rules.push_back({{"train.sampling_correction_max"}, [](const RunConfig& run, const RunFacts&) {
                     return run.train.sampling_correction == SamplingCorrection::kOff
                                ? std::string(" with train.sampling_correction off")
                                : std::string();
                   }});
  rules.push_back({{"train.teacher", "train.teacher_topk", "train.teacher_quant", "train.kd_beta",
                    "train.kd_temperature"},
                   [](const RunConfig& run, const RunFacts&) {
                     return run.train.objective_info().needs_teacher && run.train.kd_alpha == 0
                                ? std::string(
                                      " with train.kd_alpha 0: the loss is the cross-entropy alone")
                                : std::string();
                   }});
  rules.push_back(
      {{"train.teacher_topk", "train.teacher_quant"}, [](const RunConfig& run, const RunFacts&) {
         return teacher_kind(run.train) == TeacherKind::kScores
                    ? std::string(
                          ": train.teacher names scores, which sftrun score "
                          "has written with its own --topk")
                    : std::string();
       }});
  rules.push_back({{"train.f_alpha_divergence_coef"}, [](const RunConfig& run, const RunFacts&) {
                     return run.train.f_divergence == FDivergence::kAlpha
                                ? std::string()
                                : std::string(" unless train.f_divergence is alpha_divergence");
                   }});
  return rules;
}

}  // namespace sftrun::config
