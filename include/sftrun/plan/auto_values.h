#pragma once

#include <optional>
#include <set>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/spec/arch_spec.h"

/// What `auto` becomes for a model and a device. The front (dry runs) and the engine ask the same
/// functions.
namespace sftrun::plan {

/// Whether this processor multiplies bf16 in hardware; without that bf16 is slower than fp32 on it.
bool cpu_multiplies_bf16();

/// auto: bf16 on GPUs and on CPUs that multiply it in hardware, else fp32.   @throws ConfigError
/// for fp16 on a CPU
/// @param setting that asks for it: model.dtype, train.fp16 or a flag
config::DTypeChoice resolved_dtype(config::DTypeChoice wanted, bool on_gpu,
                                   const std::string& setting = "model.dtype");

/// auto: what the files have where an adapter is trained beside quantised matrices; else nf4 for
/// mode qlora, none otherwise.   @param kinds weights::block_kinds of the model's files
config::Quant resolved_quant(const config::TuningConfig& tuning,
                             const std::set<std::string>& kinds);

/// Positions that the model was made for, with its RoPE scaling; nullopt: any number (dynamic NTK,
/// or no position embedding).
std::optional<int64_t> num_positions(const spec::ArchSpec& arch);

/// A warning where model.max_seq_len is more than that; empty: it is not.
std::string position_warning(const config::ModelConfig& model, const spec::ArchSpec& arch);

}  // namespace sftrun::plan
