#pragma once

#include "conversion.h"
#include "sftrun/config/objectives.h"

/// Preference training of Axolotl: the trainers of TRL that `rl` names
/// (axolotl/core/builders/rl.py, core/trainers/dpo/__init__.py).
namespace sftrun::foreign {

/// null: `rl` is off, or names none that there is here.
const config::ObjectiveInfo* axolotl_preference(const Conversion& conversion);

/// Whether `reward_model` is on.
bool is_axolotl_reward_model(const Conversion& conversion);

/// `rl`
void axolotl_objective(Conversion& conversion, const SourceKey& key);
/// `reward_model: true`
void axolotl_reward_model(Conversion& conversion, const SourceKey& key);
/// Keys that mean beta. The first of them that the file has is used.
void axolotl_beta(Conversion& conversion, const SourceKey& key);
/// `dpo_loss_type`: a list, with `dpo_loss_weights` and `rpo_alpha`.
void axolotl_loss(Conversion& conversion, const SourceKey& key);
/// `dpo_loss_weights` and `rpo_alpha`, where the file has no `dpo_loss_type`.
void axolotl_loss_weights(Conversion& conversion, const SourceKey& key);
/// `dpo_label_smoothing`
void axolotl_smoothing(Conversion& conversion, const SourceKey& key);
/// `cpo_alpha` and `simpo_gamma`
void axolotl_of_simpo(Conversion& conversion, const SourceKey& key);
/// `kto_desirable_weight` and `kto_undesirable_weight`
void axolotl_kto_weight(Conversion& conversion, const SourceKey& key);
/// `lora_model_dir`: an adapter from which training starts.
void axolotl_adapter_dir(Conversion& conversion, const SourceKey& key);
/// `rl_adapter_ref_model`: the reference is a model of its own, and not the base without adapters.
void axolotl_reference(Conversion& conversion, const SourceKey& key);
/// `precompute_ref_log_probs`: of dpo and ipo.
void axolotl_precompute(Conversion& conversion, const SourceKey& key);
/// Defaults of the trainer. After all rules.
void finish_objective_of_axolotl(Conversion& conversion);

}  // namespace sftrun::foreign
