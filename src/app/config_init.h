#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "commands.h"
#include "interview.h"
#include "sftrun/launch/gpu.h"
#include "sftrun/observe/system.h"

/// `sftrun config init`: the YAML of a run, and the machine file.
namespace sftrun::app {

/// What the machine has, for defaults.
struct MachineView {
  std::vector<launch::GpuInfo> gpus;  ///< those that CUDA shows, in its order
  size_t num_hidden_gpus = 0;         ///< by CUDA_VISIBLE_DEVICES
  bool can_use_gpus = false;          ///< this build has CUDA kernels
  observe::MemoryInfo memory;
  double cpus = 1;

  /// Numbers, as --gpus has them, of the GPUs that runs can use.
  std::vector<int> usable_gpus() const;
  bool trains_on_gpu() const { return !usable_gpus().empty(); }
  /// "auto" unless a GPU is too old, which a run would refuse: then those that are not ("1", "0,2",
  /// of one that is not the first "2,"), or "cpu".
  std::string suggested_devices() const;
  uint64_t device_bytes() const;  ///< of the smallest device that runs can use
  std::string text() const;       ///< "This machine: 2 GPUs (…), 64 processors, …"
};
MachineView view_of_machine();

int init_machine(const InitOptions& options);
int init_run(const InitOptions& options);

}  // namespace sftrun::app
