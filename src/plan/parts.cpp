#include "sftrun/plan/parts.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/plan/lora_plan.h"
#include "sftrun/spec/trained_names.h"

namespace sftrun::plan {
namespace {

std::vector<spec::TensorSpec> loaded_tensors(const spec::ArchSpec& arch, const TowerUse& use) {
  return with_tower(spec::tensor_specs(arch), arch, use);
}

TrainedParts only_part(ModelPart part) {
  TrainedParts parts = TrainedParts::none();
  parts.add(part);
  return parts;
}

/// "lora", "full"; of a part beside others that train otherwise, its own.
std::string way_of(const config::TuningConfig& tuning, ModelPart part) {
  switch (tuning.train_parts.training[part]) {
    case config::PartTraining::kLora:
      return "lora";
    case config::PartTraining::kFull:
      return "full";
    default:
      return config::to_json(config::RunConfig{.tuning = tuning})["tuning"]["mode"];
  }
}

std::string text_of_part(ModelPart part, int64_t parameters, int64_t trained,
                         const config::RunConfig& config) {
  const auto count = [](int64_t number) { return format_count(static_cast<uint64_t>(number)); };
  std::string text = fmt::format("{} {}", part_name(part), count(parameters));
  if (trained == 0) return text + ", frozen";
  text += fmt::format(", {} trained ({})", count(trained), way_of(config.tuning, part));
  if (const auto rate = config.train.part_learning_rates[part])
    text += fmt::format(" with learning rate {:g}", *rate);
  return text;
}

}  // namespace

ByPart<int64_t> part_parameters(const spec::ArchSpec& arch, const TowerUse& use) {
  ByPart<int64_t> parameters = {};
  for (const spec::TensorSpec& tensor : loaded_tensors(arch, use))
    parameters[tensor.part] += tensor.numel();
  return parameters;
}

ByPart<int64_t> part_trained(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                             const TowerUse& use) {
  const TrainedParts parts = tuning.train_parts.trained();
  ByPart<int64_t> trained = {};
  if (tuning.trains_adapter()) {
    spec::LoraSpec lora = lora_spec(tuning, arch);
    for (const ModelPart part : kModelParts) {
      lora.parts = only_part(part);
      if (parts.has(part)) trained[part] = spec::num_lora_values(lora, arch);
    }
    return trained;
  }
  std::vector<spec::TensorSpec> tensors = loaded_tensors(arch, use);
  std::erase_if(tensors, [&](const spec::TensorSpec& tensor) { return !parts.has(tensor.part); });
  std::optional<spec::TrainableNames> names;
  if (tuning.mode == config::TuningMode::kPartial) names.emplace(tuning.trainable, tensors);
  for (const spec::TensorSpec& tensor : tensors)
    if (tensor.role != spec::TensorRole::kBuffer && (!names || names->match(tensor.name)))
      trained[tensor.part] += tensor.numel();
  return trained;
}

std::string describe_parts(const spec::ArchSpec& arch, const config::RunConfig& config,
                           const TowerUse& use, const ByPart<int64_t>& trained) {
  if (!arch.vision && arch.projectors.empty()) return {};
  const ByPart<int64_t> parameters = part_parameters(arch, use);
  std::vector<std::string> texts;
  for (const ModelPart part : kModelParts)
    if (parameters[part] > 0)
      texts.push_back(text_of_part(part, parameters[part], trained[part], config));
  std::string text = "parts: " + join(texts, "; ");
  if (arch.vision && !use.is_loaded)
    text += "; the vision tower is not loaded: no record has an image";
  return text;
}

}  // namespace sftrun::plan
