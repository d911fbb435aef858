#pragma once

#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/tensor_parallel.h"

namespace sftrun::plan {

/// What a rank has of each matrix with tensor parallelism.
/// @param part its `rank` and `size`   @param stored of the files of a frozen base
/// @param place of parallel.tp, for errors
/// @throws ConfigError if the model, or the format in which its frozen weights are stored or will be
/// quantised, cannot be divided; it names sizes that fit
spec::TensorParallel tensor_part(const spec::ArchSpec& arch, const config::RunConfig& config,
                                 const StoredBlocks& stored, spec::TensorParallel part,
                                 const std::string& place = "parallel.tp");

/// Why the sizes of the model, or the format of its frozen weights, cannot be divided into so many
/// parts. Empty: they can.
std::string refusal_of_parts(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                             const StoredBlocks& stored, int64_t parts);

/// The sizes from 2 to `max` in which `tensor_part` can divide the model.
std::vector<int64_t> sizes_of_parts(const spec::ArchSpec& arch, const config::RunConfig& config,
                                    const StoredBlocks& stored, int64_t max);

}  // namespace sftrun::plan
