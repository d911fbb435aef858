#include <chrono>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "sftrun/parallel/nccl_factory.h"

// Declared by include/sftrun/parallel/nccl_factory.h.
extern "C" void sftrun_nccl_backend(void* store, int rank, int world, long timeout_ms,
                                    void* result) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(timeout_ms);
  const auto& shared_store = *static_cast<c10::intrusive_ptr<c10d::Store>*>(store);
  *static_cast<c10::intrusive_ptr<c10d::Backend>*>(result) =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(shared_store, rank, world, std::move(options));
}

static_assert(std::is_same_v<decltype(&sftrun_nccl_backend), sftrun::parallel::NcclFactory>);
