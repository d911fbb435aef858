#pragma once

#include <string>

namespace sftrun::engine {

struct CudaStatus {
  int num_devices = 0;
  std::string reason;       ///< why there are none
  bool has_driver = false;  ///< NVIDIA's driver is there
};

/// Loads libtorch_cuda and libsftrun_cuda once, if this machine has an NVIDIA driver, and registers
/// what they bring.
CudaStatus load_cuda_library();

}  // namespace sftrun::engine
