#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conversion.h"
#include "sftrun/config/objectives.h"

/// Keys of preference training that several tools have.
namespace sftrun::foreign {

using config::ObjectiveInfo;

/// "`train.objective` takes …: use TRL itself for other objectives"
std::string other_objectives(std::string_view tool);
/// An error: the key asks for another kind of training than there is here.
void refuse_objective(Conversion& conversion, const SourceKey& key);

/// A loss by the name that a tool has for it, and its factor in the sum.
struct WeightedLoss {
  std::string name;
  double weight = 1;
};
using WeightedLosses = std::vector<WeightedLoss>;

/// The names of a loss or a list of losses, in lower case.
std::vector<std::string> loss_names(const Value& value);
/// Adds the weight to that of a loss of this name.
void add_loss(WeightedLosses& losses, std::string_view name, double weight);
/// Gives each loss its weight from the list of `weights`. nullopt: the lists differ in length, or a
/// weight is no number of at least 0, which is an error.
/// @param losses the key that names the losses, for the message; its name if the file does not have it
std::optional<WeightedLosses> weighted_losses(Conversion& conversion,
                                              const std::vector<std::string>& names,
                                              const std::optional<SourceKey>& weights,
                                              std::string_view losses_key);
/// Sets `train.loss_type`. An error if `objective` does not take one of them.
/// @param key names the losses
void set_losses(Conversion& conversion, const SourceKey& key, const ObjectiveInfo& objective,
                const WeightedLosses& losses);
/// DPO's `label_smoothing`, which TRL 1.x reads with the losses robust and exo_pair alone
/// (trl/trainer/dpo_trainer.py).
void set_smoothing_of_dpo(Conversion& conversion, const SourceKey& key,
                          const std::vector<std::string>& losses);
/// `precompute_ref_log_probs` of a file that trains on `objective`; null: on none that there is here.
void set_precomputed_reference(Conversion& conversion, const SourceKey& key,
                               const ObjectiveInfo* objective);

}  // namespace sftrun::foreign
