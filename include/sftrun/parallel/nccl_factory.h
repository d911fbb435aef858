#pragma once

/// Registers the NCCL backend of libsftrun_cuda.so, so that the engine need not link libtorch_cuda.
namespace sftrun::parallel {

/// @param store_address `c10::intrusive_ptr<c10d::Store>*`
/// @param result_address `c10::intrusive_ptr<c10d::Backend>*`, which receives the backend
using NcclFactory = void (*)(void* store_address, int rank, int world_size, long timeout_ms,
                             void* result_address);
void register_nccl_factory(NcclFactory factory);
bool has_nccl();

}  // namespace sftrun::parallel
