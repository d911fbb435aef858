#include "sftrun/plan/lora_plan.h"

namespace sftrun::plan {
namespace {

spec::NamePattern pattern_of(const nlohmann::ordered_json& values) {
  spec::NamePattern pattern;
  for (const auto& [name, value] : values.items()) pattern.emplace_back(name, value.get<double>());
  return pattern;
}

}  // namespace

spec::LoraTargets lora_targets(const config::LoraConfig& lora) {
  return {.modules = lora.target_modules,
          .parameters = lora.target_parameters,
          .dropout = lora.dropout,
          .saved = lora.modules_to_save};
}

spec::LoraSizes lora_sizes(const config::LoraConfig& lora) {
  return {.r = lora.r,
          .alpha = lora.alpha,
          .rslora = lora.rslora,
          .rank_pattern = pattern_of(lora.rank_pattern),
          .alpha_pattern = pattern_of(lora.alpha_pattern),
          .dora = lora.dora};
}

}  // namespace sftrun::plan
