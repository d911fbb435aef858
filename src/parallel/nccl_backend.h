#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace sftrun::parallel {

/// ProcessGroupNCCL lives in libtorch_cuda, which the engine does not link: libsftrun_cuda.so makes
/// it.
/// @throws DeviceError when that library is not loaded.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int world_size,
                                                    std::chrono::milliseconds timeout);

}  // namespace sftrun::parallel
