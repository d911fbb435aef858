#pragma once

#include "conversion.h"
#include "sftrun/config/objectives.h"

/// Preference training of Axolotl: the trainers of TRL that `rl` names
/// (axolotl/core/builders/rl.py, core/trainers/dpo/__init__.py).
namespace sftrun::foreign {

/// null: `rl` is off, or names none that there is here.
const config::ObjectiveInfo* axolotl_preference(const Conversion& conversion);

/// `rl`
void axolotl_objective(Conversion& conversion, const SourceKey& key);
/// `dpo_loss_type`
void axolotl_loss(Conversion& conversion, const SourceKey& key);

}  // namespace sftrun::foreign
