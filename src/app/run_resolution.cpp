#include "run_resolution.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine_location.h"
#include "sftrun/config/idle_settings.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/classes.h"
#include "sftrun/data/retrieval.h"
#include "sftrun/launch/gpu.h"
#include "sftrun/launch/launch_plan.h"
#include "sftrun/observe/system.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/plan/device_map.h"
#include "sftrun/plan/refusals.h"
#include "sftrun/plan/stages.h"
#include "sftrun/plan/tensor_division.h"
#include "sftrun/weights/embedding_files.h"

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
  undivided.parallel.axes = {};
  const plan::DeviceStages stages =
      plan::place_units(headers.arch, parallel,
                        {.num_gpus = num_gpus,
                         .unit_bytes = plan::unit_bytes(
                             headers.arch, undivided, devices.element_bytes, headers.stored,
                             {.on_gpu = devices.on_gpu, .tower = devices.tower}),
                         .device_bytes = kUnitsShare * static_cast<double>(devices.memory_bytes)},
                        place);
  parallel.strategy = config::Strategy::kDeviceMap;
  parallel.device_map = plan::as_places(stages, headers.arch);
  parallel.pp = static_cast<int64_t>(stages.devices.size());
  config::resolve_axes(parallel, devices.world_size, devices.local_world_size);
  plan::require_model(headers.arch, loaded.config, [&](const config::Divisions&) { return place; });
  plan::require_stages(headers.arch, loaded.config, place);
}

/// The run with the format of its base, where the files' headers say it.
config::RunConfig with_form(config::RunConfig config, const ModelHeaders& headers) {
  if (headers.knows_form)
    config.tuning.quant = plan::resolved_quant(config.tuning, headers.block_kinds);
  return config;
}

/// The sizes of parallel.tp that divide both the model and the processes.
/// @param processes that other sizes leave   @return what to do instead of another size
std::string fix_of_parts(const config::RunConfig& config, const ModelHeaders& headers,
                         int64_t processes) {
  config::RunConfig undivided = with_form(config, headers);
  undivided.parallel = {};
  std::vector<std::string> sizes;
  for (const int64_t size :
       plan::sizes_of_parts(headers.arch, undivided, headers.blocks, processes))
    if (processes % size == 0) sizes.push_back(std::to_string(size));
  const std::string instead = "use, without parallel.tp, parallel.strategy fsdp or pipeline";
  return sizes.empty()
             ? instead
             : fmt::format("set parallel.tp to {}, or {}", joined(sizes, " or "), instead);
}

/// @throws ConfigError if heads, inner channels or blocks cannot be divided so
void require_parts(const config::RunConfig& config, const ModelHeaders& headers, int world_size,
                   int64_t parts, const std::string& place) {
  try {
    plan::require_parts(headers.arch, parts, place);
  } catch (const ConfigError& error) {
    throw ConfigError(error.message(), error.where(),
                      fix_of_parts(config, headers, world_size / config.parallel.pp.value_or(1)));
  }
  plan::tensor_part(headers.arch, with_form(config, headers), headers.blocks, {.size = parts},
                    place);
}

/// Resolves the sizes. A size of parallel.tp that the model refuses is named before one that the
/// processes refuse, so that errors suggest sizes that suit both.
void resolve_axes(config::LoadedConfig& loaded, const ModelHeaders& headers,
                  const plan::RunDevices& devices) {
  config::ParallelConfig& parallel = loaded.config.parallel;
  const int64_t parts = devices.world_size == 1 ? 1 : parallel.tp.value_or(1);
  if (parts > 1)
    require_parts(loaded.config, headers, devices.world_size, parts,
                  loaded.place_of("parallel.tp"));
  try {
    config::resolve_axes(parallel, devices.world_size, devices.local_world_size, loaded.places);
  } catch (const ConfigError& error) {
    const int64_t left = devices.world_size / parallel.pp.value_or(1);
    if (parts == 1 || left == 0 || left % parts == 0) throw;
    throw ConfigError(
        error.message(), error.where(),
        fmt::format("{}, or start a multiple of {} processes",
                    fix_of_parts(loaded.config, headers, left), parts * parallel.pp.value_or(1)));
  }
}

/// Whether these axes are possible with some models only.
bool asks_model(const config::Axes& axes) {
  return axes.divides_model() || axes.cp > 1 || config::depends_on_model(axes);
}

/// Whether the YAML divides the run along an axis.
bool has_sizes(const config::ParallelConfig& parallel) {
  const auto rows = config::axis_rows();
  return std::any_of(rows.begin(), rows.end(), [&](const config::AxisRow& row) {
    return (parallel.*row.asked).value_or(1) > 1;
  });
}

void divide_automatically(config::ParallelConfig& parallel, const plan::StrategySizes& chosen) {
  parallel.strategy = chosen.strategy;
  if (chosen.pp) parallel.pp = chosen.pp;
  if (chosen.tp) parallel.tp = chosen.tp;
}

/// Refuses axes that the model cannot have. An error names the size that the YAML sets, else the
/// strategy.   @param asked before it was resolved
void require_model(const config::LoadedConfig& loaded, const config::ParallelConfig& asked,
                   const ModelHeaders& headers) {
  if (!config::depends_on_model(loaded.config.parallel.axes)) return;
  config::ParallelConfig sizes = asked;
  sizes.strategy = config::Strategy::kAuto;
  plan::require_model(headers.arch, loaded.config, [&](const config::Divisions& where) {
    const std::string size = where.setting(sizes);
    return loaded.place_of(size.empty() ? "parallel.strategy" : size);
  });
}

/// Resolves parallel.strategy and its sizes. One process trains as `single`.
void resolve_strategy(config::LoadedConfig& loaded, const ModelHeaders& headers,
                      const RunPlace& place) {
  config::ParallelConfig& parallel = loaded.config.parallel;
  const plan::RunDevices& devices = place.devices;
  if (has_device_map(parallel)) return resolve_device_map(loaded, headers, devices, place.num_gpus);
  if (parallel.strategy == config::Strategy::kAuto && !has_sizes(parallel))
    divide_automatically(
        parallel, plan::auto_strategy(headers.arch, with_form(loaded.config, headers), devices,
                                      headers.stored, headers.blocks));
  const auto place_of = [&](const char* size, bool is_set) {
    return loaded.place_of(is_set ? size : "parallel.strategy");
  };
  const std::string pp = place_of("parallel.pp", parallel.pp.has_value()),
                    tp = place_of("parallel.tp", parallel.tp.has_value());
  const config::ParallelConfig asked = parallel;
  resolve_axes(loaded, headers, devices);
  require_model(loaded, asked, headers);
  if (parallel.axes.has_stages()) plan::require_stages(headers.arch, loaded.config, pp);
  if (parallel.axes.cp > 1)
    plan::require_shared_heads(headers.arch, parallel.axes, loaded.place_of("parallel.cp"));
  if (parallel.axes.tp > 1)
    require_parts(loaded.config, headers, devices.world_size, parallel.axes.tp, tp);
}

/// The classes and whether a text may have several, of the configuration, the model or the data.
void resolve_classes(config::RunConfig& config, const std::filesystem::path& model_path) {
  const auto& own = read_arch(model_path).score;
  data::FoundClasses found =
      data::find_classes(config, own ? own->names : std::vector<std::string>());
  if (!found.remark.empty()) log::warn("{}", found.remark);
  config.data.classes = std::move(found.names);
  config.train.problem_type = found.problem;
}

/// Of one query with one text there is nothing to tell the text from.
void require_negatives(const config::LoadedConfig& loaded) {
  const config::TrainConfig& train = loaded.config.train;
  const bool has_others = train.negatives.value_or(0) > 0 || loaded.config.data.packing ||
                          train.global_batch_size.value.value_or(2) > 1;
  if (!train.objective_info().embeds() || has_others) return;
  throw ConfigError(
      "a global batch has one example, whose records have no \"negative\": train.objective embed "
      "tells the text of a query from the other texts of the batch",
      loaded.place_of("train.global_batch_size"),
      "raise train.batch_size or train.grad_accum, or use records with \"negative\"");
}

/// As commands that write texts refuse it.
void require_model_of_objective(const config::LoadedConfig& loaded,
                                const std::filesystem::path& model_path) {
  const config::ObjectiveInfo& objective = loaded.config.train.objective_info();
  if (objective.head != config::HeadKind::kLanguage) return;
  weights::refuse_embedding_model(
      model_path,
      {.model = "the model " + loaded.config.model.name,
       .why = fmt::format("train.objective {} trains a model that writes them", objective.name),
       .where = loaded.place_of("model.name"),
       .fix = fmt::format("name a language model, or an objective that begins with such models: {}",
                          joined(config::objective_names([](const auto& row) {
                                   return row.head != config::HeadKind::kLanguage;
                                 }),
                                 " or "))});
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
  if (loaded.config.train.objective_info().reads_classes())
    resolve_classes(loaded.config, model_path);
  if (loaded.config.train.objective_info().embeds())
    loaded.config.train.negatives = data::find_negatives(loaded.config);
  require_model_of_objective(loaded, model_path);
  Run run{.model_path = model_path, .batches = batch_request(loaded.config.train)};
  if (place.device == "cpu" && world_size > 1 &&
      loaded.config.parallel.backend == config::CommBackend::kNccl) {
    throw ConfigError("NCCL needs GPUs and this run computes on the CPU",
                      loaded.place_of("parallel.backend"), "use gloo or auto");
  }
  const bool needs_headers =
      loaded.config.train.batch_size.is_auto() || has_device_map(loaded.config.parallel) ||
      (world_size > 1 && (loaded.config.parallel.strategy == config::Strategy::kAuto ||
                          loaded.config.parallel.tp.value_or(1) > 1 ||
                          asks_model(config::axes_of(loaded.config.parallel, world_size,
                                                     devices.local_world_size, loaded.places))));
  const ModelHeaders model = headers != nullptr ? *headers
                             : needs_headers    ? read_headers(model_path, loaded.config)
                                                : ModelHeaders();
  resolve_strategy(loaded, model, place);
  run.batches.dp_size = static_cast<int>(loaded.config.parallel.axes.data_parts());
  if (loaded.config.train.batch_size.is_auto()) {
    run.batches.max_micro_batch = plan::max_micro_batch(
        model.arch, loaded.config, devices.memory_bytes, devices.element_bytes, model.stored,
        {.on_gpu = devices.on_gpu,
         .tower = devices.tower,
         .images = devices.images,
         .teacher = devices.teacher});
  }
  run.batches.max_micro_batch = std::min(run.batches.max_micro_batch, place.max_micro_batch);
  config::resolve(loaded, yaml, world_size, run.batches.max_micro_batch);
  require_negatives(loaded);
  for (config::IdleSetting& idle : config::idle_settings(
           asked, loaded.config, {.world_size = world_size, .on_gpu = devices.on_gpu}))
    loaded.warnings.push_back(std::move(idle.warning));
  run.loaded = std::move(loaded);
  return run;
}

}  // namespace sftrun::app
