#pragma once

#include "sftrun/config/run_config.h"

/// What the reference model of preference training is made of (`train.reference`).
namespace sftrun::config {

/// Whether the model without its adapters is the base that the run began with: LoRA alone trains,
/// and its start does not change the base.
bool is_base_without_adapters(const TuningConfig& tuning);
/// Whether the model without its adapters is the model as it starts: new LoRA, whose B is zero.
bool starts_as_base(const TuningConfig& tuning);
/// Whether the reference model is the model as the run starts.
bool starts_as_reference(const RunConfig& run);
/// Whether its log-probabilities of all answers are computed before the first step: always of
/// another model.
bool precomputes_reference(const TrainConfig& train);
/// Whether a frozen copy of the initial trained values is kept for the passes of the reference
/// model.
bool keeps_start(const RunConfig& run);

}  // namespace sftrun::config
