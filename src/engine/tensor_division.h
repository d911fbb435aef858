#pragma once

#include "sftrun/config/run_config.h"
#include "sftrun/parallel/mesh.h"
#include "sftrun/spec/tensor_parallel.h"
#include "sftrun/weights/checkpoint.h"

namespace sftrun::engine {

/// What a rank has of each matrix with tensor parallelism.
/// @throws ConfigError if the model, or the format of its frozen weights, cannot be divided
spec::TensorParallel tensor_part(const weights::Checkpoint& checkpoint,
                                 const config::RunConfig& config, const parallel::Mesh& mesh);

}  // namespace sftrun::engine
