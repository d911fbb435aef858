#include <fmt/format.h>

#include "idle_rules/rules.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

/// Whether some optimizers read the key, and that of the run does not.
IdleRule read_by_some_optimizers(std::string_view setting) {
  return {{"train." + std::string(setting)}, [setting](const RunConfig& run, const RunFacts&) {
            const OptimizerInfo& optimizer = optimizer_info(run.train.optimizer);
            if (optimizer.reads(setting)) return std::string();
            const std::vector<std::string> readers =
                optimizer_names([&](const OptimizerInfo& info) { return info.reads(setting); });
            return fmt::format(" with train.optimizer {}: only {} {} it", optimizer.name,
                               joined(readers, " and "), readers.size() == 1 ? "reads" : "read");
          }};
}

/// Whether an optimizer for matrices updates everything that is trained: A and B alone.
bool updates_all(const OptimizerInfo& optimizer, const TuningConfig& tuning) {
  const LoraConfig& lora = tuning.lora;
  return optimizer.updates(TensorRole::kLoraA) && optimizer.updates(TensorRole::kLoraB) &&
         tuning.trains_adapter() && !lora.dora && lora.modules_to_save.empty() &&
         !tuning.full_parts().any() && lora.init_from.empty();  // that adapter may have more
}

/// Settings of the optimizer for tensors that the run's own does not update.
IdleRule read_for_other_tensors(const OptimizerInfo& own) {
  std::vector<std::string> keys;
  for (const std::string_view setting : optimizer_info(*own.others).settings)
    keys.push_back("train." + std::string(setting));
  return {std::move(keys), [&own](const RunConfig& run, const RunFacts&) {
            const bool is_idle =
                run.train.optimizer == own.optimizer && updates_all(own, run.tuning);
            return is_idle ? fmt::format(
                                 " with train.optimizer {}, which updates LoRA's A and B "
                                 "itself: AdamW is for tensors that are not matrices",
                                 own.name)
                           : "";
          }};
}

}  // namespace

IdleRules rules_of_optimizers() {
  IdleRules rules;
  for (const std::string_view setting : optimizer_settings())
    rules.push_back(read_by_some_optimizers(setting));
  for (const OptimizerInfo& info : kOptimizers)
    if (info.others) rules.push_back(read_for_other_tensors(info));
  rules.push_back({{"train.nesterov"}, [](const RunConfig& run, const RunFacts&) {
                     const OptimizerInfo& optimizer = optimizer_info(run.train.optimizer);
                     const bool is_idle = optimizer.reads("nesterov") &&
                                          optimizer.refusal == nullptr &&
                                          run.train.resolved_momentum() == 0;
                     return is_idle ? " with train.momentum 0" : "";
                   }});
  return rules;
}

}  // namespace sftrun::config
