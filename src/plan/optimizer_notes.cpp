#include "sftrun/plan/optimizer_notes.h"

#include <fmt/format.h>

#include <vector>

#include "sftrun/config/optimizer_state.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/trained_names.h"

namespace sftrun::plan {
namespace {

/// Which of muon's two ways to update have parameters.
struct MuonParts {
  bool matrices = false, others = false;
};

MuonParts muon_parts(const config::TuningConfig& tuning, const spec::ArchSpec& arch) {
  const std::vector<spec::TensorSpec> tensors = spec::tensor_specs(arch);
  const spec::TrainableNames trainable(tuning.trainable, tensors);
  MuonParts parts;
  for (const spec::TensorSpec& tensor : tensors) {
    if (tensor.role == TensorRole::kBuffer || !trainable.match(tensor.name)) continue;
    (config::is_updated_by_muon(tensor.role) ? parts.matrices : parts.others) = true;
  }
  return parts;
}

}  // namespace

std::string idle_muon_keys(const config::RunConfig& config, const spec::ArchSpec& arch) {
  const config::TrainConfig& train = config.train;
  if (train.optimizer != config::Optimizer::kMuon ||
      config.tuning.mode != config::TuningMode::kPartial)
    return {};
  const MuonParts parts = muon_parts(config.tuning, arch);
  const config::TrainConfig unset{.optimizer = config::Optimizer::kMuon};
  std::vector<std::string> keys;
  const auto add = [&](const char* key, bool is_set) {
    if (is_set) keys.push_back(std::string("train.") + key);
  };
  if (!parts.others) {
    add("adam_beta1", train.adam_beta1 != unset.adam_beta1);
    add("adam_beta2", train.adam_beta2 != unset.adam_beta2);
    add("adam_epsilon", train.adam_epsilon != unset.adam_epsilon);
  }
  if (!parts.matrices) {
    add("momentum", train.resolved_momentum() != unset.resolved_momentum());
    add("nesterov", train.resolved_nesterov() != unset.resolved_nesterov());
    add("muon_lr", train.muon_lr != unset.muon_lr);
  }
  if (keys.empty()) return {};
  return fmt::format("{} change{} nothing: tuning.trainable selects {}", join(keys, ", "),
                     keys.size() == 1 ? "s" : "",
                     parts.matrices ? "only matrices, which muon updates without AdamW"
                                    : "no matrices, and muon updates other tensors with AdamW");
}

}  // namespace sftrun::plan
