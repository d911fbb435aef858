#pragma once

#include <cstdint>

#include "sftrun/spec/arch_spec.h"

/// CUDA graphs pay where a micro-batch is so small that the host queues it more slowly than the GPU
/// computes it (docs/cuda-graphs.md).
namespace sftrun::spec {

/// The largest micro-batch, in tokens, for which a CUDA graph is faster, on a fast GPU. Depends on
/// the model only, so that all GPUs run the same shapes.
/// @param trains_all all weights are trained, not an adapter
int64_t tokens_worth_a_graph(const ArchSpec& arch, bool trains_all);

}  // namespace sftrun::spec
