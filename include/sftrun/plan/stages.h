#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/spec/arch_spec.h"

/// How a pipeline divides the units of a model (embedding, layers, head) into stages.
namespace sftrun::plan {

/// Multiplications and additions per token of each unit in the forward pass: the embedding, each
/// layer, the head. Experts count as often as a token chooses them.
/// @param seq_len tokens of a sequence, which attention reads
std::vector<double> unit_costs(const spec::ArchSpec& arch, int64_t seq_len);

/// The division into consecutive stages whose most expensive stage is the cheapest possible. Of two
/// such divisions, the one whose stages differ less.
/// @param costs of the units   @param stages at most their number
/// @return the first unit of each stage, and the number of units   [stages + 1]
std::vector<int64_t> balanced_stages(const std::vector<double>& costs, int64_t stages);

/// The stages of a run.   @pre parallel.strategy is pipeline or device_map, resolved
std::vector<int64_t> stages_of(const spec::ArchSpec& arch, const config::RunConfig& config);

/// Of each stage, what it keeps of the activations that one process would keep: its share of the
/// layers, times the micro-batches that are under way.   @pre as of `stages_of`
std::vector<double> activation_shares(const spec::ArchSpec& arch, const config::RunConfig& config);

/// "pipeline of 2 stages: embedding, layers 0 to 8; layers 9 to 15, head".   @pre as of `stages_of`
std::string describe_stages(const spec::ArchSpec& arch, const config::RunConfig& config);
/// Warns of a pipeline whose stages wait for much of the time; nullopt: they do not.
/// @pre resolved batch sizes
std::optional<std::string> waiting_stages_warning(const config::RunConfig& config);

/// @throws ConfigError if the model has too few layers for this many stages
/// @param place of parallel.strategy or parallel.pp in the configuration
void require_stages(const spec::ArchSpec& arch, const config::RunConfig& config,
                    const std::string& place);

}  // namespace sftrun::plan
