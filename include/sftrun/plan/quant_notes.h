#pragma once

#include <set>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::plan {

/// Names the keys of `tuning` that are set but have no effect on this run's base, with the reason;
/// empty: none.   @param keeps_stored whether the base keeps its files' format
std::string idle_quant_keys(const config::TuningConfig& tuning, bool keeps_stored);

/// @param kinds weights::block_kinds of the model's files
/// @param key of `quant`
/// @throws ConfigError where a form is to stay that they do not have.   @pre keeps_blocks()
void require_blocks(config::Quant quant, const std::set<std::string>& kinds,
                    const std::string& key = "tuning.quant");

/// PiSSA subtracts the principal part from each matrix, and what is left cannot be written as
/// ggml's blocks.   @throws ConfigError where a run would have to
void require_pissa_over(const config::TuningConfig& tuning, const spec::ArchSpec& arch,
                        const StoredBytes& stored, const std::set<std::string>& kinds);

}  // namespace sftrun::plan
