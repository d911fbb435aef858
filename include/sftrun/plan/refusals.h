#pragma once

#include <string>

#include "sftrun/config/refusals.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::plan {

/// What the table of refusals asks of a model, in this run.
config::ModelFacts model_facts(const spec::ArchSpec& arch, const config::RunConfig& config);

/// @param parts that tensor parallelism makes of each matrix   @param place of parallel.tp
/// @throws ConfigError if the model cannot be divided so
void require_parts(const spec::ArchSpec& arch, const config::RunConfig& config, int64_t parts,
                   const std::string& place);

/// Why the run cannot be divided as its axes say: the table of refusals, and the sizes of the model.
/// Empty: it can.
std::string refusal_of(const spec::ArchSpec& arch, const config::RunConfig& config);

}  // namespace sftrun::plan
