#include "nccl_backend.h"

#include "sftrun/core/error.h"
#include "sftrun/parallel/nccl_factory.h"

namespace sftrun::parallel {
namespace {

// Set once, while libsftrun_cuda.so is being loaded.
NcclFactory& registered() {
  static NcclFactory factory = nullptr;
  return factory;
}

}  // namespace

void register_nccl_factory(NcclFactory factory) {
  registered() = factory;
}
bool has_nccl() {
  return registered() != nullptr;
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int world_size,
                                                    std::chrono::milliseconds timeout) {
  if (!has_nccl()) {
    throw DeviceError("NCCL is not available: the CUDA library is not loaded",
                      "parallel.backend: nccl",
                      "use parallel.backend: gloo, or build where a CUDA compiler is installed");
  }
  c10::intrusive_ptr<c10d::Store> store_copy = store;
  c10::intrusive_ptr<c10d::Backend> backend;
  registered()(&store_copy, rank, world_size, static_cast<long>(timeout.count()), &backend);
  return backend;
}

}  // namespace sftrun::parallel
