#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "run_check.h"
#include "run_forecast.h"
#include "sftrun/config/run_config.h"
#include "sftrun/plan/micro_batch.h"
#include "teacher_source.h"

/// What `auto` becomes on the devices of a run, before a worker starts.
namespace sftrun::app {

/// Whether one process has the layers on several devices.
bool has_device_map(const config::ParallelConfig& parallel);

/// A configuration, and the values known before a worker starts.
struct Run {
  config::LoadedConfig
      loaded;  ///< resolved, except for values that depend on the device and the data
  std::filesystem::path model_path;  ///< the model's path on this machine
  BatchRequest batches;
  std::string images_of_bin;             ///< that workers plan for (planned_images.h); empty: none
  std::optional<TeacherSource> teacher;  ///< beside the student
};

/// Where a run is started, or would be.
struct RunPlace {
  plan::RunDevices devices;
  std::string device;    ///< as --device has it
  int64_t num_gpus = 0;  ///< that one process sees; for a device map
  int64_t max_micro_batch = config::kMaxAutoMicroBatch;  ///< of the automatic choice
};

/// This machine.   @param device, gpus as --device and --gpus have them   @param world_size
/// processes of the run, of which local_world_size are on this machine
RunPlace place_here(const config::RunConfig& config, int world_size, int local_world_size,
                    const std::string& device, const std::string& gpus = {});

/// Resolves strategy, batch sizes and what follows from other values.
/// @param headers of the model; null: read if a value is auto that depends on them
/// @throws ConfigError naming the keys that do not fit the devices or the model
Run resolve_run(config::LoadedConfig loaded, const std::filesystem::path& model_path,
                const ModelHeaders* headers, const std::filesystem::path& yaml,
                const RunPlace& place);

}  // namespace sftrun::app
