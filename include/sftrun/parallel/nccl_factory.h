#pragma once

/// How libsftrun_cuda.so hands NCCL to the engine, without the engine linking libtorch_cuda.
namespace sftrun::parallel {

/// @param store_address `c10::intrusive_ptr<c10d::Store>*`   @param result_address
/// `c10::intrusive_ptr<c10d::Backend>*`, assigned
using NcclFactory = void (*)(void* store_address, int rank, int world_size, long timeout_ms,
                             void* result_address);
void register_nccl_factory(NcclFactory factory);
bool has_nccl();

}  // namespace sftrun::parallel
