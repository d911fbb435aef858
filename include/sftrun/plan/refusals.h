#pragma once

#include <string>

#include "sftrun/config/refusals.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::plan {

/// What the table of refusals asks of a model, in this run.
config::ModelFacts model_facts(const spec::ArchSpec& arch, const config::RunConfig& config);

/// The one question to the table about the model of a run: all rows, all axes.
/// @throws ConfigError for the first row by which the model refuses the run's axes
void require_model(const spec::ArchSpec& arch, const config::RunConfig& config,
                   const config::PlaceOfDivision& place_of);

/// The sizes of the model.   @param parts that tensor parallelism makes of each matrix
/// @param place of parallel.tp   @throws ConfigError if they cannot be divided so
void require_parts(const spec::ArchSpec& arch, int64_t parts, const std::string& place);

/// The heads of the model, of which each rank that shares a sequence computes some.
/// @param axes resolved   @param place of parallel.cp   @throws ConfigError if they cannot be divided so
void require_shared_heads(const spec::ArchSpec& arch, const config::Axes& axes,
                          const std::string& place);

/// Why the run cannot be divided as its axes say: the table of refusals, the sizes of the model, and
/// the blocks in which frozen weights are stored or will be quantised. Empty: it can.
/// @param blocks of the model's files
std::string refusal_of(const spec::ArchSpec& arch, const config::RunConfig& config,
                       const StoredBlocks& blocks = {});

}  // namespace sftrun::plan
