#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/tensor_parallel.h"

namespace sftrun::plan {

/// Consecutive values of a row that a stored format does not separate, by tensor
/// (weights::packed_blocks).
using StoredBlocks = std::map<std::string, int64_t>;

/// What a rank has of each matrix with tensor parallelism.
/// @param part its `rank` and `size`   @param stored of the files of a frozen base
/// @throws ConfigError if the model, or the format of its frozen weights, cannot be divided
spec::TensorParallel tensor_part(const spec::ArchSpec& arch, const config::RunConfig& config,
                                 const StoredBlocks& stored, spec::TensorParallel part);

/// The sizes from 2 to `max` in which `tensor_part` can divide the model.
std::vector<int64_t> sizes_of_parts(const spec::ArchSpec& arch, const config::RunConfig& config,
                                    const StoredBlocks& stored, int64_t max);

}  // namespace sftrun::plan
