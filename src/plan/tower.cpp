#include "sftrun/plan/tower.h"

#include <cmath>
#include <iterator>
#include <optional>

#include "sftrun/plan/lora_plan.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/spec/vision_tensors.h"

namespace sftrun::plan {
namespace {

constexpr std::string_view kWeightEnding = ".weight";

}  // namespace

TowerUse TowerUse::of(const config::TuningConfig& tuning, const spec::ArchSpec& arch,
                      bool has_images) {
  const TrainedParts parts = tuning.train_parts.trained();
  const bool trains = parts.vision || (parts.projector && arch.projectors.empty());
  return {.is_loaded = arch.vision && (has_images || trains), .parts = parts};
}

ImageShape ImagesOfBin::times(int64_t bins) const {
  const auto all = [&](double of_bin) {
    return static_cast<int64_t>(std::ceil(static_cast<double>(bins) * of_bin));
  };
  return {.tiles = all(tiles), .patches = all(patches), .longest_tile = longest_tile};
}

ImagesOfBin ImagesOfBin::of(const ImageShape& micro_batch, int64_t bins) {
  const auto share = [&](int64_t all) {
    return static_cast<double>(all) / static_cast<double>(bins);
  };
  return {.tiles = share(micro_batch.tiles),
          .patches = share(micro_batch.patches),
          .longest_tile = micro_batch.longest_tile};
}

std::vector<spec::TensorSpec> tower_tensors(const spec::ArchSpec& arch) {
  std::vector<spec::TensorSpec> read;
  for (spec::TensorSpec& tensor : spec::vision_tensor_specs(*arch.vision, arch.hidden_size))
    if (spec::is_read(*arch.vision, tensor)) read.push_back(std::move(tensor));
  return read;
}

std::vector<spec::TensorSpec> with_tower(std::vector<spec::TensorSpec> text,
                                         const spec::ArchSpec& arch, const TowerUse& use) {
  if (!use.is_loaded) return text;
  std::vector<spec::TensorSpec> tower = tower_tensors(arch);
  text.insert(text.end(), std::move_iterator(tower.begin()), std::move_iterator(tower.end()));
  return text;
}

int64_t num_tower_units(const spec::ArchSpec& arch, const TowerUse& use) {
  return use.is_loaded ? arch.vision->num_used_layers + 2 : 0;
}

int64_t num_input_units(const spec::ArchSpec& arch, const TowerUse& use) {
  return num_tower_units(arch, use) + std::ssize(arch.projectors);
}

int64_t tower_unit_of(const spec::ArchSpec& arch, const spec::TensorSpec& tensor) {
  if (tensor.unit == spec::VisionUnit::kEmbedding) return 0;
  return tensor.unit == spec::VisionUnit::kLayer ? 1 + tensor.layer
                                                 : 1 + arch.vision->num_used_layers;
}

bool is_tower_linear(const spec::TensorSpec& tensor) {
  return tensor.role == spec::TensorRole::kLinear && tensor.name.ends_with(kWeightEnding);
}

std::string module_of_weight(const std::string& tensor) {
  return tensor.substr(0, tensor.size() - kWeightEnding.size());
}

TowerTraining::TowerTraining(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                             const TowerUse& use) {
  if (!use.is_loaded) return;
  const std::vector<spec::TensorSpec> tensors = tower_tensors(arch);
  std::optional<spec::TrainableNames> names;
  if (tuning.mode == config::TuningMode::kPartial)
    names.emplace(tuning.trainable, with_tower(spec::tensor_specs(arch), arch, use));
  const spec::LoraSpec lora = lora_spec(tuning, arch);
  for (const spec::TensorSpec& tensor : tensors) {
    if (tensor.role == spec::TensorRole::kBuffer || !use.parts.has(tensor.part)) continue;
    const bool in_full = tuning.trains_adapter() ? spec::is_saved(lora.modules_to_save, tensor.name)
                                                 : !names || names->match(tensor.name);
    if (in_full) {
      tensors_.insert(tensor.name);
    } else if (tuning.trains_adapter() && is_tower_linear(tensor)) {
      const std::string module = module_of_weight(tensor.name);
      const spec::LinearSpec linear{.in_features = tensor.shape[1],
                                    .out_features = tensor.shape[0]};
      if (!spec::is_target(lora, module, linear, arch)) continue;
      ranks_[module] = lora.r_of(spec::update_name(lora, module));
    } else {
      continue;
    }
    add(tower_unit_of(arch, tensor));
  }
}

int64_t TowerTraining::rank(const std::string& module) const {
  const auto found = ranks_.find(module);
  return found == ranks_.end() ? 0 : found->second;
}

}  // namespace sftrun::plan
