#pragma once

#include "conversion.h"
#include "sftrun/config/objectives.h"

/// Objectives of TRL beside SFT: DPOConfig, KTOConfig, RewardConfig and GRPOConfig (trl/trainer/), CPOConfig and GKDConfig
/// (trl/experimental/). A file does not name its trainer: its keys tell. ORPOConfig has no key of
/// its own.
namespace sftrun::foreign {

/// What the file trains on.
const config::ObjectiveInfo& trl_objective(const Conversion& conversion);

/// `lora_task_type`, which tells reward training.
void trl_task_type(Conversion& conversion, const SourceKey& key);
/// `loss_type`: a name, of DPO also a list of names.
void trl_loss(Conversion& conversion, const SourceKey& key);
/// `label_smoothing`
void trl_smoothing(Conversion& conversion, const SourceKey& key);
/// `beta`, which GKDConfig has with a meaning of its own.
void trl_beta(Conversion& conversion, const SourceKey& key);
/// `temperature`, `lmbda` and `max_new_tokens`: of answers that the model writes itself.
void trl_temperature(Conversion& conversion, const SourceKey& key);
void trl_top_k(Conversion& conversion, const SourceKey& key);
void trl_share(Conversion& conversion, const SourceKey& key);
void trl_new_tokens(Conversion& conversion, const SourceKey& key);
/// `max_completion_length`, of answers that GRPO judges, or of pairs.
void trl_completion_length(Conversion& conversion, const SourceKey& key);
/// `teacher_model_name_or_path`
void trl_teacher(Conversion& conversion, const SourceKey& key);
/// `vllm_importance_sampling_mode`
void trl_sampling_correction(Conversion& conversion, const SourceKey& key);
/// `use_vllm`, with `vllm_mode` and the address of the server.
void trl_vllm(Conversion& conversion, const SourceKey& key);
/// `train_sampling_strategy`: the order of the data.
void trl_sampling(Conversion& conversion, const SourceKey& key);
/// `precompute_ref_log_probs`
void trl_precompute(Conversion& conversion, const SourceKey& key);
/// `disable_dropout`
void trl_dropout(Conversion& conversion, const SourceKey& key);
/// The objective, and the defaults of its trainer. After all rules.
/// Whether adapters have the dropout of ModelConfig: not with GKDTrainer, unless the file says so.
bool has_dropout_in_trl(const Conversion& conversion);
void finish_objective_of_trl(Conversion& conversion);

}  // namespace sftrun::foreign
