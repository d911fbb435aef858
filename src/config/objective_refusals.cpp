#include "objective_refusals.h"

#include <fmt/format.h>

#include <array>

#include "choices.h"
#include "sftrun/config/reference_model.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

struct RefusalRow {
  const char* key;
  bool (*concerns)(const ObjectiveInfo& objective);
  bool (*applies)(const RunConfig& run);
  /// `{objective}` and `{mode}` stand for the words of the run, `{others}` for the objectives that
  /// the row does not concern.
  const char *message, *fix;
  /// Reported by the checks of the setting, and not by those of the objective.
  bool is_with_setting = false;
};

bool needs_reference(const ObjectiveInfo& objective) {
  return objective.needs_reference;
}
bool is_of_documents(const ObjectiveInfo& objective) {
  return objective.is_of_documents();
}
bool needs_teacher(const ObjectiveInfo& objective) {
  return objective.needs_teacher;
}
bool takes_whole_answers(const ObjectiveInfo& objective) {
  return !objective.reads_answers();
}

/// Whether the reference model is to be the model without its adapters.
bool compares_with_base(const RunConfig& run) {
  return run.train.reference_model() == ReferenceModel::kBase;
}

constexpr const char* kUseStart =
    "set train.reference to start: the model as it starts is then the reference";

/// With `train.reference: base`, what trains must be an adapter, and without it the model must be
/// what the run began with. The first row hides the others.
constexpr auto kRefusalsOfObjectives = std::to_array<RefusalRow>({
    {.key = "tuning.mode",
     .concerns = needs_reference,
     .applies =
         [](const RunConfig& run) {
           return compares_with_base(run) && !run.tuning.trains_adapter();
         },
     .message = "`train.reference` base is the base model with the adapter switched off, which "
                "`tuning.mode` {mode} changes",
     .fix = kUseStart},
    {.key = "tuning.lora.init",
     .concerns = needs_reference,
     .applies =
         [](const RunConfig& run) {
           return compares_with_base(run) && run.tuning.lora.init == LoraInit::kPissa;
         },
     .message = "`train.reference` is base, and `tuning.lora.init` pissa moves a part of the base "
                "model's weights into the adapter: the base model alone is not the reference",
     .fix = kUseStart},
    {.key = "tuning.lora.modules_to_save",
     .concerns = needs_reference,
     .applies =
         [](const RunConfig& run) {
           return compares_with_base(run) && !run.tuning.lora.modules_to_save.empty();
         },
     .message = "`train.reference` is base, and `tuning.lora.modules_to_save` trains modules that "
                "replace the base model's: there is no reference without them",
     .fix = kUseStart},
    {.key = "tuning.train_parts",
     .concerns = needs_reference,
     .applies =
         [](const RunConfig& run) {
           return compares_with_base(run) && run.tuning.full_parts().any();
         },
     .message = "`train.reference` is base, and `tuning.train_parts` trains a part in full, which "
                "replaces the base model's: there is no reference without it",
     .fix = kUseStart},
    {.key = "data.streaming",
     .concerns = needs_reference,
     .applies =
         [](const RunConfig& run) {
           return run.data.streaming && run.train.reference_model() == ReferenceModel::kPath;
         },
     .message =
         "`train.reference` names a model whose log-probabilities of all answers are computed "
         "before the first step, and with `data.streaming` the answers are not known then",
     .fix = "remove data.streaming, or set train.reference to start"},
    {.key = "data.streaming",
     .concerns = needs_reference,
     .applies =
         [](const RunConfig& run) {
           return run.data.streaming && run.train.reference_model() != ReferenceModel::kPath &&
                  precomputes_reference(run.train);
         },
     .message = "`train.reference_logps` is precomputed, and with `data.streaming` the answers are "
                "not known before the first step",
     .fix = "set train.reference_logps to online, or remove data.streaming"},
    {.key = "train.reference",
     .concerns = [](const ObjectiveInfo& objective) { return objective.reads_samples(); },
     .applies =
         [](const RunConfig& run) {
           return run.train.needs_reference() &&
                  run.train.reference_model() == ReferenceModel::kPath;
         },
     .message = "`train.objective` is {objective}, which compares single tokens with the reference "
                "model, and log-probabilities of another model are sums over answers",
     .fix = "set train.reference to start or base"},
    {.key = "train.reference_logps",
     .concerns = [](const ObjectiveInfo& objective) { return objective.reads_samples(); },
     .applies =
         [](const RunConfig& run) {
           return run.train.reference_logps == ReferenceLogps::kPrecomputed;
         },
     .message = "`train.objective` is {objective}, which compares single tokens with the reference "
                "model, and log-probabilities computed before are sums over answers",
     .fix = "set train.reference_logps to online, or remove it"},
    {.key = "data.streaming",
     .concerns = [](const ObjectiveInfo& objective) { return objective.reads_samples(); },
     .applies = [](const RunConfig& run) { return run.data.streaming; },
     .message =
         "`train.objective` is {objective}, whose advantages are known when all answers of a "
         "group are, and with `data.streaming` they are not",
     .fix = "remove data.streaming"},
    {.key = "train.reference_logps",
     .concerns = [](const ObjectiveInfo& objective) { return objective.needs_mismatched; },
     .applies = [](const RunConfig& run) { return precomputes_reference(run.train); },
     .message = "`train.objective` is {objective}, whose reference model scores answers of other "
                "examples of each batch, too: its log-probabilities cannot be computed before",
     .fix = "set train.reference to start or base, and train.reference_logps to online"},
    {.key = "train.ld_alpha",
     .concerns = [](const ObjectiveInfo& objective) { return objective.reads("train.ld_alpha"); },
     .applies =
         [](const RunConfig& run) {
           return precomputes_reference(run.train) && run.train.ld_alpha.value_or(1) != 1;
         },
     .message = "`train.ld_alpha` weighs single tokens, and log-probabilities of the reference "
                "model that are computed before are sums over answers",
     .fix = "set train.reference_logps to online and train.reference to start or base, or remove "
            "ld_alpha"},
    {.key = "train.neftune_noise_alpha",
     .concerns = [](const ObjectiveInfo& objective) { return !objective.has_dropout; },
     .applies = [](const RunConfig& run) { return run.train.neftune_noise_alpha.has_value(); },
     .message = "`train.objective` is {objective}, which trains without dropout and without the "
                "noise of `train.neftune_noise_alpha`",
     .fix = "remove neftune_noise_alpha"},
    {.key = "train.router_aux_loss_coef",
     .concerns = [](const ObjectiveInfo& objective) { return !objective.has_aux_loss; },
     .applies = [](const RunConfig& run) { return run.train.router_aux_loss_coef.value_or(0) > 0; },
     .message = "`train.objective` is {objective}, and its loss has no load-balancing term",
     .fix = "set train.router_aux_loss_coef to 0"},
    {.key = "train.teacher",
     .concerns = needs_teacher,
     .applies = [](const RunConfig& run) { return run.train.teacher.empty(); },
     .message = "`train.objective` is {objective}, and `train.teacher` names no teacher",
     .fix = "write train.teacher: MODEL, which is then loaded beside the student; or let it score "
            "the run's data before, and name the folder: sftrun score --config run.yaml --model "
            "MODEL --topk 64 --output teacher (docs/distillation.md)"},
    {.key = "train.rollouts.share",
     .concerns = [](const ObjectiveInfo& objective) { return objective.takes_own_answers; },
     .applies =
         [](const RunConfig& run) {
           return run.train.has_own_answers() && run.train.kd_alpha == 0;
         },
     .message = "`train.rollouts.share` is for answers of the student that the teacher scores, and "
                "with `train.kd_alpha` 0 the teacher says nothing",
     .fix = "set train.kd_alpha to 1, or remove train.rollouts.share"},
    {.key = "data.thinking",
     .concerns = takes_whole_answers,
     .applies = [](const RunConfig& run) { return run.data.thinking == Thinking::kSplit; },
     .message = "`data.thinking` is split, which makes several examples of one conversation",
     .fix = "set data.thinking to template or keep"},
    {.key = "parallel.fetch",
     .concerns = is_of_documents,
     .applies = [](const RunConfig& run) { return run.parallel.fetch == Fetch::kPerStep; },
     .message = "`parallel.fetch: per_step` is for objective {others}: with {objective} the "
                "gradient of a micro-batch depends on its loss",
     .fix = "remove parallel.fetch",
     .is_with_setting = true},
    {.key = "train.predict_with_generate",
     .concerns = takes_whole_answers,
     .applies = [](const RunConfig& run) { return run.train.predict_with_generate; },
     .message = "`train.predict_with_generate` compares answers with a reference, and "
                "`train.objective` {objective} reads no such answers",
     .fix = "remove predict_with_generate",
     .is_with_setting = true},
    {.key = "train.eval_token_accuracy",
     .concerns = is_of_documents,
     .applies = [](const RunConfig& run) { return run.train.eval_token_accuracy; },
     .message = "`train.eval_token_accuracy` is for objective {others}: {objective} has other "
                "metrics",
     .fix = "remove eval_token_accuracy",
     .is_with_setting = true},
});

ObjectiveRefusal refusal_of(const RefusalRow& row, const RunConfig& run) {
  const auto others =
      objective_names([&](const ObjectiveInfo& objective) { return !row.concerns(objective); });
  return {
      row.key,
      fmt::format(fmt::runtime(row.message), fmt::arg("objective", run.train.objective_info().name),
                  fmt::arg("mode", word_of(run.tuning.mode)),
                  fmt::arg("others", joined(others, " or "))),
      row.fix};
}

bool is_refused(const RefusalRow& row, const RunConfig& run) {
  return row.concerns(run.train.objective_info()) && row.applies(run);
}

}  // namespace

std::vector<ObjectiveRefusal> objective_refusals(const RunConfig& run) {
  std::vector<ObjectiveRefusal> refusals;
  for (const RefusalRow& row : kRefusalsOfObjectives) {
    if (row.is_with_setting || !is_refused(row, run)) continue;
    refusals.push_back(refusal_of(row, run));
    if (&row == &kRefusalsOfObjectives.front()) break;
  }
  return refusals;
}

std::vector<ObjectiveRefusal> objective_refusals(const RunConfig& run, std::string_view key) {
  std::vector<ObjectiveRefusal> refusals;
  for (const RefusalRow& row : kRefusalsOfObjectives)
    if (row.is_with_setting && row.key == key && is_refused(row, run))
      refusals.push_back(refusal_of(row, run));
  return refusals;
}

}  // namespace sftrun::config
