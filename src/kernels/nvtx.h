#pragma once

#include <string>

/// Ranges for tools that read NVTX, as Nsight Systems, in the domain "sftrun". NVTX is loaded when the
/// first range begins: it looks for the tool that NVTX_INJECTION64_PATH names, which the tool sets.
/// In a build without CUDA there are none.
namespace sftrun::kernels {

/// Whether a tool listens. The same for the whole life of the process.
bool nvtx_listens();
/// Begins a range of this thread. Only if a tool listens.
void nvtx_push(const std::string& name);
/// Ends the range that this thread began last. Only if a tool listens.
void nvtx_pop();

}  // namespace sftrun::kernels
