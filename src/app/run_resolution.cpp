#include "run_resolution.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine_location.h"
#include "sftrun/config/idle_settings.h"
#include "sftrun/core/error.h"
#include "sftrun/launch/gpu.h"
#include "sftrun/launch/launch_plan.h"
#include "sftrun/observe/system.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/plan/device_map.h"
#include "sftrun/plan/stages.h"
#include "sftrun/spec/tensor_parallel.h"

namespace sftrun::app {

bool has_device_map(const config::ParallelConfig& parallel) {
  return parallel.device_map || parallel.strategy == config::Strategy::kDeviceMap;
}

namespace {

/// Computed from the total memory, not the free memory, so that launcher and workers get the same
/// result.   @param device as --device has it
plan::RunDevices devices_of(const config::RunConfig& config, int world_size, int local_world_size,
                            const std::string& device) {
  constexpr int64_t kHalfBytes = 2, kFullBytes = 4;
  const config::DTypeChoice dtype = config.model.dtype;
  plan::RunDevices devices{.world_size = world_size, .local_world_size = local_world_size};
  std::optional<uint64_t> gpu_bytes;  // of the smallest
  if (device != "cpu") {
    for (const launch::GpuInfo& gpu : launch::query_gpus().gpus) {
      if (gpu.memory_total_bytes)
        gpu_bytes = std::min(gpu_bytes.value_or(UINT64_MAX), *gpu.memory_total_bytes);
    }
  }
  devices.on_gpu = gpu_bytes.has_value();
  const bool is_half = dtype == config::DTypeChoice::kAuto
                           ? devices.on_gpu || plan::cpu_multiplies_bf16()
                           : dtype != config::DTypeChoice::kFp32;
  devices.element_bytes = is_half ? kHalfBytes : kFullBytes;
  devices.memory_bytes = gpu_bytes.value_or(observe::memory_info().total_bytes /
                                            static_cast<uint64_t>(local_world_size));
  return devices;
}

/// GPUs that one process of this run sees.   @param gpus as --gpus has them
int64_t visible_gpus(const std::string& device, const std::string& gpus) {
  if (device == "cpu") return 0;
  return static_cast<int64_t>(
      launch::make_plan({.nproc_per_node = "1", .gpus = gpus, .device = device},
                        launch::this_machine(has_cuda_kernels()))
          .gpus.size());
}

/// Resolves parallel.device_map: every unit of the model has a device then.
void resolve_device_map(config::LoadedConfig& loaded, const ModelHeaders& headers,
                        const plan::RunDevices& devices, int64_t num_gpus) {
  config::ParallelConfig& parallel = loaded.config.parallel;
  const std::string place =
      loaded.place_of(parallel.device_map ? "parallel.device_map" : "parallel.strategy");
  if (devices.world_size > 1) {
    throw ConfigError(
        fmt::format("parallel.device_map is one process with several GPUs, and this run has {} "
                    "processes",
                    devices.world_size),
        place,
        "start one process, without --nproc-per-node and --nnodes; or use, without "
        "parallel.device_map, parallel.strategy pipeline or fsdp, which divide the model over "
        "processes");
  }
  constexpr double kUnitsShare = 0.7;  // of a device's memory; activations need the rest
  config::RunConfig undivided = loaded.config;
  undivided.parallel.strategy = config::Strategy::kSingle;
  const plan::DeviceStages stages = plan::place_units(
      headers.arch, parallel,
      {.num_gpus = num_gpus,
       .unit_bytes = plan::unit_bytes(headers.arch, undivided, devices.element_bytes,
                                      headers.stored, {.on_gpu = devices.on_gpu}),
       .device_bytes = kUnitsShare * static_cast<double>(devices.memory_bytes)},
      place);
  parallel.strategy = config::Strategy::kDeviceMap;
  parallel.device_map = plan::as_places(stages, headers.arch);
  parallel.pp = static_cast<int64_t>(stages.devices.size());
  plan::require_stages(headers.arch, loaded.config, place);
}

/// Resolves parallel.pp.
void resolve_stages(config::LoadedConfig& loaded, const spec::ArchSpec& arch, int world_size) {
  config::ParallelConfig& parallel = loaded.config.parallel;
  if (parallel.strategy != config::Strategy::kPipeline || world_size == 1) return;
  const std::string place = loaded.place_of(parallel.pp ? "parallel.pp" : "parallel.strategy");
  config::resolve_stages(parallel, world_size, loaded.places);
  plan::require_stages(arch, loaded.config, place);
}

/// Resolves parallel.tp.
void resolve_tensor_size(config::LoadedConfig& loaded, const spec::ArchSpec& arch, int world_size) {
  config::ParallelConfig& parallel = loaded.config.parallel;
  if (parallel.strategy != config::Strategy::kTensor || world_size == 1) return;
  const std::string place = loaded.place_of(parallel.tp ? "parallel.tp" : "parallel.strategy");
  config::resolve_tensor_size(parallel, world_size, loaded.places);
  spec::require_divisible(arch, {.size = *parallel.tp}, place);
}

/// Resolves parallel.strategy `auto` and parallel.dp_shard. One process trains as `single`.
void resolve_strategy(config::LoadedConfig& loaded, const ModelHeaders& headers,
                      const RunPlace& place) {
  config::ParallelConfig& parallel = loaded.config.parallel;
  const plan::RunDevices& devices = place.devices;
  if (has_device_map(parallel)) return resolve_device_map(loaded, headers, devices, place.num_gpus);
  const auto follow_size = [&](const std::optional<int64_t>& size, config::Strategy its) {
    const bool divides = size.value_or(1) > 1 && devices.world_size > 1;
    if (parallel.strategy == config::Strategy::kAuto && divides) parallel.strategy = its;
  };
  follow_size(parallel.pp, config::Strategy::kPipeline);
  follow_size(parallel.tp, config::Strategy::kTensor);
  follow_size(parallel.dp_shard, config::Strategy::kHybrid);
  if (parallel.strategy == config::Strategy::kAuto)
    parallel.strategy = plan::auto_strategy(headers.arch, loaded.config, devices, headers.stored);
  resolve_stages(loaded, headers.arch, devices.world_size);
  resolve_tensor_size(loaded, headers.arch, devices.world_size);
  if (parallel.strategy != config::Strategy::kHybrid || devices.world_size == 1) return;
  const std::string chosen = parallel.dp_shard
                                 ? fmt::format("parallel.dp_shard is {}", *parallel.dp_shard)
                                 : fmt::format(
                                       "the default of parallel.dp_shard is {}, the processes of "
                                       "this machine",
                                       devices.local_world_size);
  const int64_t shards = parallel.dp_shard.value_or(devices.local_world_size);
  if (devices.world_size % shards != 0) {
    throw ConfigError(fmt::format("{}, which does not divide the {} processes of the run", chosen,
                                  devices.world_size),
                      loaded.place_of("parallel.dp_shard"),
                      fmt::format("set parallel.dp_shard to {}, the processes that share one copy "
                                  "of the model",
                                  config::near_divisors(devices.world_size, shards)));
  }
  parallel.dp_shard = shards;
}

}  // namespace

RunPlace place_here(const config::RunConfig& config, int world_size, int local_world_size,
                    const std::string& device, const std::string& gpus) {
  return {.devices = devices_of(config, world_size, local_world_size, device),
          .device = device,
          .num_gpus = has_device_map(config.parallel) ? visible_gpus(device, gpus) : 0};
}

Run resolve_run(config::LoadedConfig loaded, const std::filesystem::path& model_path,
                const ModelHeaders* headers, const std::filesystem::path& yaml,
                const RunPlace& place) {
  const plan::RunDevices& devices = place.devices;
  const int world_size = devices.world_size;
  const config::LoadedConfig asked = loaded;
  Run run{.model_path = model_path, .batches = batch_request(loaded.config.train)};
  if (place.device == "cpu" && world_size > 1 &&
      loaded.config.parallel.backend == config::CommBackend::kNccl) {
    throw ConfigError("NCCL needs GPUs and this run computes on the CPU",
                      loaded.place_of("parallel.backend"), "use gloo or auto");
  }
  const bool needs_headers =
      loaded.config.train.batch_size.is_auto() || has_device_map(loaded.config.parallel) ||
      (world_size > 1 && (loaded.config.parallel.strategy == config::Strategy::kAuto ||
                          loaded.config.parallel.strategy == config::Strategy::kPipeline ||
                          loaded.config.parallel.strategy == config::Strategy::kTensor));
  const ModelHeaders model = headers != nullptr ? *headers
                             : needs_headers    ? read_headers(model_path)
                                                : ModelHeaders();
  resolve_strategy(loaded, model, place);
  run.batches.dp_size = config::data_parallel_size(loaded.config.parallel, world_size);
  if (loaded.config.train.batch_size.is_auto()) {
    run.batches.max_micro_batch = plan::max_micro_batch(
        model.arch, loaded.config, devices.memory_bytes, devices.element_bytes, model.stored,
        {.on_gpu = devices.on_gpu,
         .shards = plan::num_shards(loaded.config.parallel, world_size, devices.local_world_size)});
  }
  run.batches.max_micro_batch = std::min(run.batches.max_micro_batch, place.max_micro_batch);
  config::resolve(loaded, yaml, world_size, run.batches.max_micro_batch);
  for (config::IdleSetting& idle : config::idle_settings(
           asked, loaded.config, {.world_size = world_size, .on_gpu = devices.on_gpu}))
    loaded.warnings.push_back(std::move(idle.warning));
  run.loaded = std::move(loaded);
  return run;
}

}  // namespace sftrun::app
