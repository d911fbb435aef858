#include "sftrun/config/preference_warnings.h"

#include <fmt/format.h>

namespace sftrun::config {

std::vector<std::string> preference_warnings(const RunConfig& asked) {
  const TrainConfig& train = asked.train;
  const ObjectiveInfo& objective = train.objective_info();
  if (objective.reads_answers() || objective.has_scores() || objective.reads_retrieval()) return {};
  std::vector<std::string> warnings;
  if (!train.learning_rate) {
    const bool is_adapter = asked.tuning.trains_adapter();
    warnings.push_back(fmt::format(
        "train.learning_rate is not set: the default, {:g}, is that of supervised fine-tuning. "
        "{} usually has about {}",
        is_adapter ? kLoraLearningRate : kFullLearningRate,
        objective.reads_samples() ? "Training on sampled answers" : "Preference training",
        objective.reads_samples() ? (is_adapter ? "1e-5 with LoRA" : "1e-6 with all weights")
                                  : (is_adapter ? "5e-6 with LoRA" : "5e-7 with all weights")));
  }
  const bool has_one_example = !asked.data.packing && train.global_batch_size.value == 1;
  if (objective.needs_mismatched && has_one_example)
    warnings.push_back(fmt::format(
        "train.global_batch_size is 1: {} estimates the distance to the reference model from the "
        "answers of other examples of a batch, and with one example the estimate is 0",
        objective.name));
  return warnings;
}

}  // namespace sftrun::config
