#include "nccl_backend.h"

#include <array>
#include <cstdlib>
#include <mutex>
#include <string>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/parallel/nccl_factory.h"

namespace sftrun::parallel {
namespace {

// Set once, while libsftrun_cuda.so is being loaded.
NcclFactory& registered() {
  static NcclFactory factory = nullptr;
  return factory;
}

/// Variables of LibTorch's ProcessGroupNCCL (2.11).
struct NcclVariable {
  const char* name;
  const char* value;
};
constexpr std::array<NcclVariable, 7> kNcclVariables = {{
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},  // 1 to 3: its watchdog ends the process, or aborts
    {"TORCH_NCCL_BLOCKING_WAIT", "0"},         // 1: the host waits in each collective
    {"TORCH_NCCL_RETHROW_CUDA_ERRORS", "0"},   // 1: an error of CUDA in its watchdog ends it
    {"TORCH_NCCL_ENABLE_MONITORING", "0"},     // 1: a watchdog that hangs ends the process
    {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},
    {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0"},  // its watchdog sleeps for four times as long
    {"TORCH_NCCL_DESYNC_DEBUG", "0"},              // 1: turns the first one on
}};

bool is_variable_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0;
}

}  // namespace

void prepare_nccl(bool warns) {
  static std::once_flag once;
  std::call_once(once, [&] {
    for (const NcclVariable& variable : kNcclVariables) {
      if (warns && is_variable_set(variable.name) &&
          std::string(std::getenv(variable.name)) != variable.value)
        log::warn("{} has no effect: sftrun handles the errors and time-outs of NCCL itself",
                  variable.name);
      ::setenv(variable.name, variable.value, /*overwrite=*/1);
    }
    for (const char* name : {"NCCL_TIMEOUT", "TORCH_NCCL_TIMEOUT"})
      if (warns && is_variable_set(name))
        log::warn("{} has no effect: set parallel.timeout ({}s)", name, std::getenv(name));
  });
}

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
  constexpr std::chrono::minutes kLater{1};  // `NcclWatch` has the time-outs, and says who is late
  const std::chrono::milliseconds later = timeout + kLater;
  registered()(&store_copy, rank, world_size, static_cast<long>(later.count()), &backend);
  return backend;
}

}  // namespace sftrun::parallel
