#pragma once

#include <cstdint>

#include "sftrun/spec/arch_spec.h"

/// CUDA graphs pay where a micro-batch is so small that the host queues it more slowly than the GPU
/// computes it (docs/cuda-graphs.md).
namespace sftrun::spec {

/// Number of tokens of a micro-batch up to which that is so, on a fast GPU. Depends on the model
/// only, so that results do not depend on the GPU.
/// @param trains_all all weights are trained, not an adapter
int64_t tokens_worth_a_graph(const ArchSpec& arch, bool trains_all);

}  // namespace sftrun::spec
