#include "trained_in_full.h"

#include <optional>
#include <vector>

#include "sftrun/plan/lora_plan.h"
#include "sftrun/spec/trained_names.h"

namespace sftrun::plan {
namespace {

/// Of the text model and of projectors of features, beside adapters.
bool is_saved_beside_adapters(const spec::TensorSpec& tensor, const spec::LoraSpec& lora,
                              const TowerUse& tower) {
  if (tensor.projector >= 0) return tower.parts.projector;
  return tower.parts.language && spec::is_saved(lora.modules_to_save, tensor.name);
}

std::set<std::string> trained_beside_adapters(const spec::ArchSpec& arch,
                                              const config::TuningConfig& tuning,
                                              const TowerUse& tower) {
  const spec::LoraSpec lora = lora_spec(tuning, arch);
  std::set<std::string> names;
  for (const spec::TensorSpec& tensor : spec::tensor_specs(arch))
    if (tensor.role != spec::TensorRole::kBuffer && is_saved_beside_adapters(tensor, lora, tower))
      names.insert(tensor.name);
  if (arch.tie_word_embeddings && tower.parts.language &&
      spec::is_saved(lora.modules_to_save, head_weight()))
    names.insert(head_weight());
  if (!tower.is_loaded) return names;
  const TowerTraining training(arch, tuning, tower);
  for (const spec::TensorSpec& tensor : tower_tensors(arch))
    if (training.trains(tensor.name)) names.insert(tensor.name);
  return names;
}

}  // namespace

std::set<std::string> trained_in_full(const spec::ArchSpec& arch,
                                      const config::TuningConfig& tuning, const TowerUse& tower) {
  if (tuning.trains_adapter()) return trained_beside_adapters(arch, tuning, tower);
  const std::vector<spec::TensorSpec> tensors = with_tower(spec::tensor_specs(arch), arch, tower);
  std::optional<spec::TrainableNames> chosen;
  if (tuning.mode == config::TuningMode::kPartial) chosen.emplace(tuning.trainable, tensors);
  std::set<std::string> names;
  for (const spec::TensorSpec& tensor : tensors)
    if (tensor.role != spec::TensorRole::kBuffer && tower.parts.has(tensor.part) &&
        (!chosen || chosen->match(tensor.name)))
      names.insert(tensor.name);
  return names;
}

std::string head_weight() {
  return std::string(spec::kHeadModule) + ".weight";
}

namespace {

/// As of `trained_in_full`, for a tensor of the text model: without a list of all where none is needed, as models with experts have many.
bool trains_in_full(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                    const TowerUse& tower, const std::string& name) {
  if (!tower.parts.language) return false;
  if (tuning.trains_adapter()) return spec::is_saved(lora_spec(tuning, arch).modules_to_save, name);
  return tuning.mode != config::TuningMode::kPartial ||
         trained_in_full(arch, tuning, tower).contains(name);
}

}  // namespace

bool trains_embedding(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                      const TowerUse& tower) {
  return trains_in_full(arch, tuning, tower, spec::embedding_module(arch) + ".weight");
}

bool trains_head(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                 const TowerUse& tower) {
  if (arch.score) return true;
  const bool is_embedding = arch.tie_word_embeddings && !tuning.trains_adapter();
  return is_embedding ? trains_embedding(arch, tuning, tower)
                      : trains_in_full(arch, tuning, tower, head_weight());
}

}  // namespace sftrun::plan
