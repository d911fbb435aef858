#include <fmt/format.h>

#include "choices.h"
#include "idle_rules/rules.h"
#include "sftrun/core/units.h"

namespace sftrun::config {
namespace {

/// Whether anything is drawn from `train.seed`.
std::string why_no_seed(const RunConfig& run, const RunFacts&) {
  const TuningConfig& tuning = run.tuning;
  const bool drops =
      tuning.trains_adapter() && tuning.lora.dropout > 0 && run.train.objective_info().has_dropout;
  const bool may_draw_head = run.train.objective_info().has_scores();
  if (drops || may_draw_head || run.train.neftune_noise_alpha || run.train.writes_answers())
    return "";
  const bool computes_start = tuning.lora.init == LoraInit::kPissa;
  if (tuning.trains_adapter() && tuning.lora.init_from.empty() && !computes_start) return "";
  const std::string run_without = !tuning.trains_adapter()
                                      ? fmt::format("tuning.mode {}", word_of(tuning.mode))
                                  : computes_start ? "a run with tuning.lora.init pissa"
                                                   : "a run from tuning.lora.init_from";
  return fmt::format(
      ": {} has no dropout and no new LoRA weights that are drawn; data.seed orders the examples",
      run_without);
}

bool warms_up(const TrainConfig& train) {
  return train.scheduler != Scheduler::kConstant &&
         (train.warmup_steps ? *train.warmup_steps > 0
                             : train.warmup_ratio.value_or(kWarmupRatio) > 0);
}

}  // namespace

IdleRules rules_of_training() {
  const auto no_warmup = [](const RunConfig& asked, const RunConfig&) {
    return asked.train.warmup_ratio.value_or(0) == 0 && asked.train.warmup_steps.value_or(0) == 0;
  };
  return {
      {{"train.epochs"},
       [](const RunConfig& run, const RunFacts&) {
         return run.train.max_steps ? " with train.max_steps" : "";
       }},
      {{"train.warmup_ratio", "train.warmup_steps"},
       [](const RunConfig& run, const RunFacts&) {
         return run.train.scheduler == Scheduler::kConstant
                    ? " with train.scheduler constant; constant_with_warmup has a warm-up"
                    : "";
       },
       no_warmup},
      {{"train.warmup_from"},
       [](const RunConfig& run, const RunFacts&) {
         return warms_up(run.train) ? "" : " without warm-up";
       },
       [](const RunConfig& asked, const RunConfig&) {
         return asked.train.warmup_from == WarmupFrom::kFirstStep;
       }},
      {{"train.seed"}, why_no_seed},
      {{"train.ddp_find_unused_parameters"},
       [](const RunConfig&, const RunFacts&) {
         return ": parameters without a gradient are always allowed";
       }},
      {{"train.ddp_broadcast_buffers"},
       [](const RunConfig&, const RunFacts&) { return ": models have no buffers that change"; }},
      {{"train.save_steps"},
       [](const RunConfig& run, const RunFacts&) {
         return run.train.save_strategy == SaveStrategy::kEpoch
                    ? " unless train.save_strategy is steps"
                    : "";
       }},
      {{"train.save_in_background"},
       [](const RunConfig& run, const RunFacts&) {
         const TrainConfig& train = run.train;
         const bool saves = train.save_steps || train.save_strategy == SaveStrategy::kEpoch ||
                            train.load_best_model_at_end ||
                            parse_duration_s(train.save_every).value_or(1) > 0;
         return saves ? ""
                      : ": the only checkpoint is the last one, and nothing is computed after it";
       },
       [](const RunConfig& asked, const RunConfig&) {
         return asked.train.save_in_background == SaveInBackground::kOff;
       }},
  };
}

}  // namespace sftrun::config
