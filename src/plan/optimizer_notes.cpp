#include "sftrun/plan/optimizer_notes.h"

#include <fmt/format.h>

#include <vector>

#include "sftrun/core/strings.h"
#include "sftrun/spec/trained_names.h"

namespace sftrun::plan {
namespace {

/// Which of an optimizer's two ways to update have parameters: its own is for matrices.
struct UpdatedParts {
  bool matrices = false, others = false;
};

UpdatedParts updated_parts(const config::OptimizerInfo& optimizer,
                           const config::TuningConfig& tuning, const spec::ArchSpec& arch) {
  const std::vector<spec::TensorSpec> tensors = spec::tensor_specs(arch);
  const spec::TrainableNames trainable(tuning.trainable, tensors);
  UpdatedParts parts;
  for (const spec::TensorSpec& tensor : tensors) {
    if (tensor.role == TensorRole::kBuffer || !trainable.match(tensor.name)) continue;
    (optimizer.updates(tensor.role) ? parts.matrices : parts.others) = true;
  }
  return parts;
}

/// The settings of `train`, with what the optimizer does if they are not set.
nlohmann::ordered_json settings_of(config::TrainConfig train) {
  train.momentum = train.resolved_momentum();
  train.nesterov = train.resolved_nesterov();
  return config::to_json({.train = std::move(train)})["train"];
}

}  // namespace

std::string idle_optimizer_keys(const config::RunConfig& config, const spec::ArchSpec& arch) {
  const config::OptimizerInfo& optimizer = config::optimizer_info(config.train.optimizer);
  if (!optimizer.others || config.tuning.mode != config::TuningMode::kPartial) return {};
  const UpdatedParts parts = updated_parts(optimizer, config.tuning, arch);
  const nlohmann::ordered_json given = settings_of(config.train),
                               unset = settings_of({.optimizer = config.train.optimizer});
  std::vector<std::string> keys;
  const auto add_set = [&](const NameList& settings) {
    for (const std::string_view setting : settings)
      if (given.at(setting) != unset.at(setting)) keys.push_back("train." + std::string(setting));
  };
  if (!parts.others) add_set(config::optimizer_info(*optimizer.others).settings);
  if (!parts.matrices) add_set(optimizer.settings);
  if (keys.empty()) return {};
  const std::string selected =
      parts.matrices
          ? fmt::format("only matrices, which {} updates without AdamW", optimizer.name)
          : fmt::format("no matrices, and {} updates other tensors with AdamW", optimizer.name);
  return fmt::format("{} change{} nothing: tuning.trainable selects {}", join(keys, ", "),
                     keys.size() == 1 ? "s" : "", selected);
}

}  // namespace sftrun::plan
