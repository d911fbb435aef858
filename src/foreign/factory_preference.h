#pragma once

#include <string_view>

#include "conversion.h"
#include "sftrun/config/objectives.h"

/// Preference training of LLaMA-Factory (llamafactory/train/dpo/trainer.py, train/kto/trainer.py,
/// hparams/finetuning_args.py).
namespace sftrun::foreign {

bool is_stage(const Conversion& conversion, std::string_view stage);
/// What the file trains on; null: the stage is not supported.
const config::ObjectiveInfo* factory_objective(const Conversion& conversion);

/// `stage`
void factory_stage(Conversion& conversion, const SourceKey& key);
/// `pref_loss`: of stage dpo.
void factory_preference(Conversion& conversion, const SourceKey& key);
/// `pref_ftx`: the weight of the cross-entropy.
void factory_cross_entropy(Conversion& conversion, const SourceKey& key);
/// `pref_bco_weight`
void factory_bco(Conversion& conversion, const SourceKey& key);
/// `dpo_label_smoothing`
void factory_smoothing(Conversion& conversion, const SourceKey& key);
/// `ld_alpha`
void factory_length(Conversion& conversion, const SourceKey& key);
/// `ref_model`: a model, or with `ref_model_adapters` one with an adapter.
void factory_reference(Conversion& conversion, const SourceKey& key);
/// `ref_model_adapters`
void factory_reference_adapter(Conversion& conversion, const SourceKey& key);
/// `adapter_name_or_path`: an adapter from which training starts.
void factory_adapter(Conversion& conversion, const SourceKey& key);
/// The sum of losses that several keys name. After all rules.
void finish_losses_of_factory(Conversion& conversion);

}  // namespace sftrun::foreign
