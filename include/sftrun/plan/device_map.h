#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/spec/arch_spec.h"

/// Which units of a model (embedding, layers, head) are on which device (`parallel.device_map`).
namespace sftrun::plan {

/// Consecutive stages, each on a device of its own.
struct DeviceStages {
  std::vector<int64_t> firsts;       ///< the first unit of each stage, and the number of units
  std::vector<std::string> devices;  ///< of each stage: "0" or "cpu:1"
};

/// What a rule of `parallel.device_map` chooses from.
struct MapDevices {
  int64_t num_gpus = 0;  ///< 0: stages are on the CPU, one unless parallel.pp says more
  std::vector<double> unit_bytes = {};  ///< of each unit, with what trains (plan::unit_bytes)
  double device_bytes = 0;              ///< sequential: bytes of units that a device may have
};

/// @throws ConfigError if a module of the map is unknown, a device does not exist, units have no
/// device, or the units of a device are not adjacent
/// @param place of the map in the configuration
DeviceStages place_units(const spec::ArchSpec& arch, const config::ParallelConfig& parallel,
                         const MapDevices& devices, const std::string& place);

/// The map that says the same with every unit named: {"embedding": "0", "layers.0-3": "0", …}
config::DeviceMap as_places(const DeviceStages& stages, const spec::ArchSpec& arch);

/// The stages of a resolved map.   @pre parallel.strategy is device_map, resolved
DeviceStages device_stages(const spec::ArchSpec& arch, const config::ParallelConfig& parallel);

/// Index of a stage's GPU; 0 on the CPU.   @param device of `DeviceStages`
int gpu_of(const std::string& device);

}  // namespace sftrun::plan
