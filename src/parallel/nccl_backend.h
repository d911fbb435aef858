#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace sftrun::parallel {

/// Before the first process group: LibTorch's threads leave errors and time-outs to `NcclWatch`, and
/// do not end the process. Also for process groups of several threads.
/// @param warns of variables that then have no effect
void prepare_nccl(bool warns);

/// Creates a ProcessGroupNCCL. That class is part of libtorch_cuda, which the engine does not link,
/// so libsftrun_cuda.so provides it.
/// @throws DeviceError when libsftrun_cuda.so is not loaded
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int world_size,
                                                    std::chrono::milliseconds timeout);

}  // namespace sftrun::parallel
