#pragma once

#include <set>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/plan/tower.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::plan {

/// Names of the tensors whose own values train, in whole models and in ones with adapters (`tuning.lora.modules_to_save`, parts that
/// `tuning.train_parts` trains in full, projectors of features). A tied head that is saved as a module of its own is among them.
std::set<std::string> trained_in_full(const spec::ArchSpec& arch,
                                      const config::TuningConfig& tuning, const TowerUse& tower);

/// The name of the head's matrix in such sets.
std::string head_weight();
/// Whether the values of the embedding train in full, and those of the head. A tied head trains with the embedding in runs without adapters; beside
/// adapters it stays as it is, if it is not saved.
bool trains_embedding(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                      const TowerUse& tower);
bool trains_head(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                 const TowerUse& tower);

}  // namespace sftrun::plan
