#include "sftrun/plan/lora_plan.h"

#include <algorithm>
#include <iterator>

#include "sftrun/core/error.h"
#include "sftrun/spec/vision_tensors.h"

namespace sftrun::plan {
namespace {

spec::NamePattern pattern_of(const nlohmann::ordered_json& values) {
  spec::NamePattern pattern;
  for (const auto& [name, value] : values.items()) pattern.emplace_back(name, value.get<double>());
  return pattern;
}

}  // namespace

void require_parts_exist(const config::TuningConfig& tuning, const spec::ArchSpec& arch) {
  const TrainedParts trained = tuning.train_parts.trained();
  if (arch.vision || !trained.has_image_side()) return;
  throw ConfigError(
      fmt::format("the model has no images: it has no {} part",
                  part_name(trained.vision ? ModelPart::kVision : ModelPart::kProjector)),
      "tuning.train_parts", "remove train_parts, or use a model that takes images");
}

spec::LoraSpec lora_spec(const config::TuningConfig& tuning, const spec::ArchSpec& arch) {
  const config::LoraConfig& lora = tuning.lora;
  spec::LoraSpec spec{.r = lora.r,
                      .alpha = lora.alpha,
                      .dropout = lora.dropout,
                      .rslora = lora.rslora,
                      .target_modules = lora.target_modules,
                      .target_parameters = lora.target_parameters,
                      .rank_pattern = pattern_of(lora.rank_pattern),
                      .alpha_pattern = pattern_of(lora.alpha_pattern),
                      .dora = lora.dora,
                      .pissa = lora.init == config::LoraInit::kPissa,
                      .modules_to_save = lora.modules_to_save,
                      .parts = tuning.train_parts.trained()};
  for (const ModelPart part : kModelParts) {
    if (!tuning.full_parts().has(part)) continue;
    std::vector<std::string> modules = spec::modules_of(arch, part);
    std::move(modules.begin(), modules.end(), std::back_inserter(spec.modules_to_save));
  }
  return spec;
}

}  // namespace sftrun::plan
