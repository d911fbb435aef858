#include "sftrun/plan/lora_plan.h"

namespace sftrun::plan {
namespace {

spec::NamePattern pattern_of(const nlohmann::ordered_json& values) {
  spec::NamePattern pattern;
  for (const auto& [name, value] : values.items()) pattern.emplace_back(name, value.get<double>());
  return pattern;
}

}  // namespace

spec::LoraSpec lora_spec(const config::LoraConfig& lora) {
  return {.r = lora.r,
          .alpha = lora.alpha,
          .dropout = lora.dropout,
          .rslora = lora.rslora,
          .target_modules = lora.target_modules,
          .target_parameters = lora.target_parameters,
          .rank_pattern = pattern_of(lora.rank_pattern),
          .alpha_pattern = pattern_of(lora.alpha_pattern),
          .dora = lora.dora,
          .pissa = lora.init == config::LoraInit::kPissa,
          .modules_to_save = lora.modules_to_save};
}

}  // namespace sftrun::plan
