#pragma once

#include "sftrun/kernels/graph.h"

namespace sftrun::kernels {

/// `CudaKernels::capture`.
std::unique_ptr<Graph> capture_graph(at::Device device, const Graph* beside,
                                     const std::function<void()>& work);

}  // namespace sftrun::kernels
