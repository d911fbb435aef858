#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "data_source_finder.h"
#include "engine_location.h"
#include "model_source.h"
#include "run_check.h"
#include "run_forecast.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/stall.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/launch/gpu.h"
#include "sftrun/launch/run_lock.h"
#include "sftrun/launch/scheduler_env.h"
#include "sftrun/launch/supervisor.h"
#include "sftrun/observe/html_report.h"
#include "sftrun/observe/system.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/plan/device_map.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/plan/stages.h"
#include "sftrun/spec/tensor_parallel.h"

namespace sftrun::app {
namespace {

using Json = nlohmann::ordered_json;

/// Whether one process has the layers on several devices.
bool has_device_map(const config::ParallelConfig& parallel) {
  return parallel.device_map || parallel.strategy == config::Strategy::kDeviceMap;
}

/// A configuration, and the values known before a worker starts.
struct Run {
  config::LoadedConfig
      loaded;  ///< resolved, except for values that depend on the device and the data
  std::filesystem::path model_path;  ///< the model's path on this machine
  BatchRequest batches;
};

void list_changes(const Json& before, const Json& after, const std::string& prefix,
                  std::vector<std::string>& changes) {
  for (const auto& [key, value] : after.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    const Json old = before.is_object() && before.contains(key) ? before[key] : Json();
    if (value.is_object()) {
      list_changes(old, value, name, changes);
    } else if (value != old) {
      changes.push_back(fmt::format("{} = {}", name,
                                    value.is_string() ? value.get<std::string>() : value.dump()));
    }
  }
}

/// Computed from the total memory, not the free memory, so that launcher and workers get the same
/// result.   @param device as --device has it
plan::RunDevices devices_of(const config::RunConfig& config, int world_size, int local_world_size,
                            const std::string& device) {
  constexpr int64_t kHalfBytes = 2, kFullBytes = 4;
  const bool may_be_half = config.model.dtype != config::DTypeChoice::kFp32;
  plan::RunDevices devices{.world_size = world_size, .local_world_size = local_world_size};
  std::optional<uint64_t> gpu_bytes;  // of the smallest
  if (device != "cpu") {
    for (const launch::GpuInfo& gpu : launch::query_gpus().gpus) {
      if (gpu.memory_total_bytes)
        gpu_bytes = std::min(gpu_bytes.value_or(UINT64_MAX), *gpu.memory_total_bytes);
    }
  }
  devices.on_gpu = gpu_bytes.has_value();
  const bool is_half = may_be_half && (devices.on_gpu || plan::cpu_multiplies_bf16());
  devices.element_bytes = is_half ? kHalfBytes : kFullBytes;
  devices.memory_bytes = gpu_bytes.value_or(observe::memory_info().total_bytes /
                                            static_cast<uint64_t>(local_world_size));
  return devices;
}

/// The flags --device and --gpus.
struct LaunchDevices {
  std::string device, gpus;
};

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
        "start one process, without --nproc-per-node and --nnodes; or use parallel.strategy "
        "pipeline or fsdp, which divide the model over processes");
  }
  constexpr double kUnitsShare = 0.7;  // of a device's memory; activations need the rest
  config::RunConfig undivided = loaded.config;
  undivided.parallel.strategy = config::Strategy::kSingle;
  const auto all_bytes = static_cast<double>(
      plan::static_bytes(headers.arch, undivided, devices.element_bytes, headers.stored,
                         {.on_gpu = devices.on_gpu, .shards = 1}));
  const plan::DeviceStages stages =
      plan::place_units(headers.arch, parallel,
                        {.num_gpus = num_gpus,
                         .unit_bytes = all_bytes,
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
  const auto warn = [&](const std::string& text) { loaded.warnings.push_back(text); };
  if (parallel.strategy != config::Strategy::kPipeline) {
    if (parallel.pp.value_or(1) > 1)
      warn(fmt::format("parallel.pp has no effect with parallel.strategy {}",
                       config::strategy_name(parallel.strategy)));
    return;
  }
  if (world_size == 1) return warn("parallel.strategy pipeline has no effect on one process");
  const std::string place = loaded.place_of(parallel.pp ? "parallel.pp" : "parallel.strategy");
  config::resolve_stages(parallel, world_size, loaded.places);
  plan::require_stages(arch, loaded.config, place);
}

/// Resolves parallel.tp.
void resolve_tensor_size(config::LoadedConfig& loaded, const spec::ArchSpec& arch, int world_size) {
  config::ParallelConfig& parallel = loaded.config.parallel;
  if (parallel.strategy != config::Strategy::kTensor) {
    if (parallel.tp.value_or(1) > 1)
      loaded.warnings.push_back(fmt::format("parallel.tp has no effect with parallel.strategy {}",
                                            config::strategy_name(parallel.strategy)));
    return;
  }
  if (world_size == 1) {
    loaded.warnings.emplace_back("parallel.strategy tensor has no effect on one process");
    return;
  }
  const std::string place = loaded.place_of(parallel.tp ? "parallel.tp" : "parallel.strategy");
  config::resolve_tensor_size(parallel, world_size, loaded.places);
  spec::require_divisible(arch, {.size = *parallel.tp}, place);
}

/// Resolves parallel.strategy `auto` and parallel.dp_shard. One process trains as `single`.
void resolve_strategy(config::LoadedConfig& loaded, const ModelHeaders& headers,
                      const plan::RunDevices& devices, const LaunchDevices& launched) {
  config::ParallelConfig& parallel = loaded.config.parallel;
  if (has_device_map(parallel))
    return resolve_device_map(loaded, headers, devices,
                              visible_gpus(launched.device, launched.gpus));
  const auto warn = [&](const std::string& text) { loaded.warnings.push_back(text); };
  if (devices.world_size == 1 && config::is_sharded(parallel.strategy))
    warn(fmt::format("parallel.strategy {} has no effect on one process",
                     config::strategy_name(parallel.strategy)));
  const bool has_stages = parallel.pp.value_or(1) > 1, has_parts = parallel.tp.value_or(1) > 1;
  if (has_stages && has_parts) {
    throw ConfigError("parallel.pp and parallel.tp are both set, and a run uses one of the two",
                      loaded.place_of("parallel.tp"),
                      "remove one; either can be combined with data parallelism");
  }
  if (parallel.strategy == config::Strategy::kAuto && has_stages)
    parallel.strategy = config::Strategy::kPipeline;
  if (parallel.strategy == config::Strategy::kAuto && has_parts)
    parallel.strategy = config::Strategy::kTensor;
  if (parallel.strategy == config::Strategy::kAuto)
    parallel.strategy = plan::auto_strategy(headers.arch, loaded.config, devices, headers.stored);
  resolve_stages(loaded, headers.arch, devices.world_size);
  resolve_tensor_size(loaded, headers.arch, devices.world_size);
  if (parallel.strategy != config::Strategy::kHybrid) {
    if (parallel.dp_shard)
      warn(fmt::format("parallel.dp_shard has no effect with parallel.strategy {}",
                       config::strategy_name(parallel.strategy)));
    return;
  }
  if (devices.world_size == 1) return;
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
                      "set parallel.dp_shard to the number of processes that share one copy of the "
                      "model");
  }
  parallel.dp_shard = shards;
}

/// Replaces init_from by the path of the adapter.
void locate_adapter(config::LoadedConfig& loaded, bool quiet) {
  constexpr const char* kKey = "tuning.lora.init_from";
  std::string& adapter = loaded.config.tuning.lora.init_from;
  if (adapter.empty()) return;
  adapter =
      find_adapter({.name = adapter, .where = loaded.place_of(kKey), .quiet = quiet}).string();
}

/// Finds the model's path. model.name of a model on the hub becomes owner/name, so that run.json
/// and the adapter name it in a way that others can find.
std::filesystem::path locate_model(config::LoadedConfig& loaded, const TrainOptions& options,
                                   bool quiet) {
  config::ModelConfig& model = loaded.config.model;
  const ModelAsked asked{.name = model.name,
                         .revision = model.revision,
                         .where = loaded.place_of("model.name"),
                         .parts = options.dry_run ? hub::ModelParts::kText : hub::ModelParts::kAll,
                         .quiet = quiet};
  ModelSource source =
      options.model_path.empty() ? find_model(asked) : found_model(asked, options.model_path);
  model.name = std::move(source.name);
  model.revision = std::move(source.revision);
  return source.path;
}

/// @param headers of the model; null: read if a value is auto that depends on them
Run resolve_run(config::LoadedConfig loaded, const std::filesystem::path& model_path,
                const ModelHeaders* headers, const std::filesystem::path& yaml, int world_size,
                int local_world_size, const LaunchDevices& launched) {
  const std::string& device = launched.device;
  Run run{.model_path = model_path, .batches = batch_request(loaded.config.train)};
  if (device == "cpu" && world_size > 1 &&
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
  const plan::RunDevices devices = devices_of(loaded.config, world_size, local_world_size, device);
  resolve_strategy(loaded, model, devices, launched);
  run.batches.dp_size = config::data_parallel_size(loaded.config.parallel, world_size);
  if (loaded.config.train.batch_size.is_auto()) {
    run.batches.max_micro_batch = plan::max_micro_batch(
        model.arch, loaded.config, devices.memory_bytes, devices.element_bytes, model.stored,
        {.on_gpu = devices.on_gpu,
         .shards = plan::num_shards(loaded.config.parallel, world_size, local_world_size)});
  }
  run.batches.max_micro_batch =
      config::max_auto_micro_batch(loaded.config.parallel, world_size, run.batches.max_micro_batch);
  config::resolve(loaded, yaml, world_size, run.batches.max_micro_batch);
  run.loaded = std::move(loaded);
  return run;
}

/// Resolves each `auto` that does not depend on the data.
config::RunConfig shown_config(const Run& run, const ModelHeaders& headers, bool on_gpu) {
  config::RunConfig shown = run.loaded.config;
  resolve_auto(shown, headers, on_gpu);
  return shown;
}

/// If a model cannot be read, the engine reports the error.
std::optional<ModelHeaders> headers_if_readable(const std::filesystem::path& model) {
  try {
    return read_headers(model);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<std::string> override_lines(const Run& run) {
  std::vector<std::string> lines;
  for (const config::Override& override : run.loaded.overrides) {
    lines.push_back(
        fmt::format("{} = {} (from {})", override.key, override.value, override.source));
  }
  return lines;
}

/// The resolved values: "train.learning_rate = 0.0002".   @param asked the configuration before
std::vector<std::string> resolved_values(const config::RunConfig& asked,
                                         const config::RunConfig& shown) {
  std::vector<std::string> values;
  list_changes(config::to_json(asked), config::to_json(shown), "", values);
  return values;
}

/// The number of bins per step depends on the data; the workers, which read them, log it.
bool follows_from_data(const Run& run, const std::string& resolved) {
  const config::RunConfig& config = run.loaded.config;
  if (!run.batches.steps_are_auto || config.data.streaming || config.train.max_steps) return false;
  const auto begins = [&](const char* key) { return resolved.starts_with(key); };
  return begins("train.batch_size ") || begins("train.grad_accum ") ||
         begins("train.global_batch_size ");
}

/// Logs the configuration and the model. The workers read the data.
void warn(const Run& run, const ModelHeaders* headers) {
  for (const std::string& warning : run.loaded.warnings) log::warn("{}", warning);
  if (headers == nullptr) return;
  const std::string positions = plan::position_warning(run.loaded.config.model, headers->arch);
  if (!positions.empty()) log::warn("{}", positions);
}

/// @param asked the configuration before it was resolved
void announce(const config::RunConfig& asked, const Run& run, const config::RunConfig& shown) {
  for (const std::string& line : override_lines(run)) log::info("override: {}", line);
  for (const std::string& line : run.loaded.notes) log::info("{}", line);
  std::vector<std::string> resolved = resolved_values(asked, shown);
  std::erase_if(resolved, [&](const std::string& one) { return follows_from_data(run, one); });
  if (!resolved.empty()) log::info("resolved: {}", join(resolved, ", "));
}

nlohmann::json engine_request(const TrainOptions& options, const Run& run) {
  nlohmann::json overrides = nlohmann::json::array();
  for (const config::Override& override : run.loaded.overrides) {
    overrides.push_back(
        {{"key", override.key}, {"value", override.value}, {"source", override.source}});
  }
  const auto& batch_size = run.batches.batch_size.value;
  return {{"config", config::to_json(run.loaded.config)},
          {"steps_are_auto", run.batches.steps_are_auto},
          {"batch_size", batch_size ? nlohmann::json(*batch_size) : nlohmann::json()},
          {"max_micro_batch", run.batches.max_micro_batch},
          {"model_path", run.model_path.string()},
          {"config_path", options.config.string()},
          {"overrides", overrides},
          {"resume", options.resume},
          {"overwrite", options.overwrite},
          {"allow_changed_data", options.allow_changed_data},
          {"allow_changed_length", options.allow_changed_length},
          {"allow_backend_change", options.allow_backend_change},
          {"profile", options.profile},
          {"device", options.device}};
}

/// Checks the trainable parameters before data are tokenized. For a model without config.json the
/// engine reports the error.
void check_tuning_of(const Run& run, const std::optional<ModelHeaders>& headers) {
  std::error_code ignored;
  const std::filesystem::path& model = run.model_path;
  if (headers) return check_tuning(run.loaded.config.tuning, headers->arch);
  if (std::filesystem::is_directory(model, ignored) &&
      !std::filesystem::exists(model / "config.json", ignored))
    return;
  check_tuning(run.loaded.config.tuning, read_arch(model));
}

void warn_and_announce(const config::RunConfig& asked, const Run& run,
                       const std::optional<ModelHeaders>& headers, bool on_gpu) {
  const config::RunConfig shown = shown_config(run, headers.value_or(ModelHeaders{}), on_gpu);
  warn(run, headers ? &*headers : nullptr);
  announce(asked, run, shown);
}

/// YAML; everything that is not configuration is in comments.
void print_dry_run(const config::RunConfig& asked, const Run& run, const ModelHeaders& headers,
                   bool on_gpu, const std::string& launch) {
  config::RunConfig shown = shown_config(run, headers, on_gpu);
  const RunCheck found = check_run(shown, run.model_path, headers);
  const Forecast steps = forecast(shown, found.train, run.batches);
  apply_sizes(steps, shown);
  warn(run, &headers);
  if (const auto waiting = plan::waiting_stages_warning(shown)) log::warn("{}", *waiting);
  for (const std::string& line : override_lines(run)) fmt::print("# override: {}\n", line);
  for (const std::string& line : run.loaded.notes) fmt::print("# {}\n", line);
  std::vector<std::string> resolved = resolved_values(asked, shown);
  if (!steps.is_exact)
    std::erase_if(resolved, [&](const std::string& one) { return follows_from_data(run, one); });
  for (const std::string& line : resolved) fmt::print("# resolved: {}\n", line);
  for (const std::string& line : split(launch, '\n')) fmt::print("# launch: {}\n", line);
  if (config::divides_layers(shown.parallel.strategy))
    fmt::print("# {}\n", plan::describe_stages(headers.arch, shown));
  for (const std::string& line : found.lines) fmt::print("# {}\n", line);
  for (const std::string& line : lines_of(steps, shown)) fmt::print("# {}\n", line);
  fmt::print("{}", config::to_yaml(shown));
}

/// Writes report.html when a run has ended in any way. A report that cannot be written ends no run.
class ReportAtEnd {
 public:
  explicit ReportAtEnd(std::filesystem::path run_dir) : run_dir_(std::move(run_dir)) {}
  ~ReportAtEnd() {
    try {
      std::error_code ignored;
      if (!std::filesystem::exists(run_dir_ / "metrics.jsonl", ignored)) return;
      observe::write_html_report(run_dir_);
      log::info("report: {}", (run_dir_ / "report.html").string());
    } catch (const std::exception& error) {
      log::warn("report.html was not written: {}", split(error.what(), '\n').front());
    }
  }
  ReportAtEnd(const ReportAtEnd&) = delete;
  ReportAtEnd& operator=(const ReportAtEnd&) = delete;

 private:
  std::filesystem::path run_dir_;
};

/// Runs as a rank that another launcher (torchrun, Slurm, MPI) has started.
int run_worker(const TrainOptions& options, const launch::ExternalWorker& external,
               const launch::Environment& env) {
  for (const auto& [name, value] : external.variables) ::setenv(name.c_str(), value.c_str(), 1);
  launch::Environment complete = env;
  complete.insert(external.variables.begin(), external.variables.end());
  const launch::WorkerEnv worker = launch::worker_env(complete);
  config::LoadedConfig loaded = config::load_config(options.config, options.overrides);
  find_data(loaded, /*quiet=*/worker.rank != 0 || worker.supervised);
  locate_adapter(loaded, /*quiet=*/worker.rank != 0 || worker.supervised);
  if (worker.rank == 0) config::require_files(loaded);  // before a model is downloaded
  if (worker.rank == 0 && !worker.supervised) warn_of_files_in_both(loaded.config.data);
  const auto model_path =
      locate_model(loaded, options, /*quiet=*/worker.rank != 0 || worker.supervised);
  const config::RunConfig asked = loaded.config;
  std::optional<ModelHeaders> headers;
  if (!worker.supervised)
    headers = options.dry_run ? read_headers(model_path) : headers_if_readable(model_path);
  const Run run =
      resolve_run(std::move(loaded), model_path, headers ? &*headers : nullptr, options.config,
                  worker.world_size, worker.local_world_size, {.device = options.device});
  if (worker.supervised) return run_as_worker("worker", engine_request(options, run));
  const std::string launch =
      fmt::format("started by {}: {} workers, rendezvous {}:{}", external.scheduler,
                  worker.world_size, worker.master_addr, worker.master_port);
  const bool on_gpu =
      options.device != "cpu" && !launch::this_machine(has_cuda_kernels()).gpus.gpus.empty();
  if (options.dry_run) {
    if (worker.rank == 0) print_dry_run(asked, run, *headers, on_gpu, launch);
    return static_cast<int>(ExitCode::kDone);
  }
  check_tuning_of(run, headers);
  std::optional<launch::RunLock> lock;
  std::optional<ReportAtEnd> report;
  if (worker.rank == 0) {
    log::info("{}", launch);
    warn_and_announce(asked, run, headers, on_gpu);
    lock.emplace(run.loaded.config.output.dir);
    report.emplace(run.loaded.config.output.dir);
  }
  return run_in_engine("worker", engine_request(options, run));
}

launch::LaunchRequest launch_request(const TrainOptions& options, const config::RunConfig& config,
                                     const launch::Environment& env) {
  return {.nproc_per_node = options.nproc_per_node,
          .gpus = options.gpus,
          .device = options.device,
          .nnodes = options.nnodes,
          .node_rank = options.node_rank,
          .master_addr = options.master_addr,
          .master_port = options.master_port,
          .is_one_process = has_device_map(config.parallel),
          .may_share_gpus = config.parallel.backend == config::CommBackend::kGloo ||
                            env.contains("SFTRUN_SHARE_GPUS")};
}

/// Command line of a worker, which is this program. Launch flags are not passed on; torchrun's
/// variables replace them.
launch::WorkerCommand worker_command(const TrainOptions& options, const Run& run,
                                     const std::string& device, bool is_restart) {
  std::vector<std::string> arguments = {"sftrun",   "train", "--config", options.config.string(),
                                        "--device", device};
  if (options.overwrite && !is_restart)
    arguments.push_back("--overwrite");
  else
    arguments.insert(arguments.end(), {"--resume", is_restart ? "auto" : options.resume});
  if (run.model_path !=
      run.loaded.config.model.name) {  // on a hub: the launcher found it for all workers
    arguments.insert(arguments.end(), {"--model-path", run.model_path.string()});
  }
  if (!options.profile.empty()) arguments.insert(arguments.end(), {"--profile", options.profile});
  if (options.allow_changed_data) arguments.push_back("--allow-changed-data");
  if (options.allow_changed_length) arguments.push_back("--allow-changed-length");
  if (options.allow_backend_change) arguments.push_back("--allow-backend-change");
  arguments.insert(arguments.end(), options.overrides.begin(), options.overrides.end());
  if (const std::string& adapter = run.loaded.config.tuning.lora.init_from; !adapter.empty())
    arguments.push_back("tuning.lora.init_from=" +
                        adapter);  // a resumed run uses its newest checkpoint
  return {.executable = "/proc/self/exe", .arguments = std::move(arguments)};
}

int run_launcher(const TrainOptions& options, const launch::Environment& env) {
  config::LoadedConfig loaded = config::load_config(options.config, options.overrides);
  const launch::Machine machine = launch::this_machine(has_cuda_kernels());
  const launch::LaunchPlan plan =
      launch::make_plan(launch_request(options, loaded.config, env), machine);
  find_data(loaded, /*quiet=*/false);
  locate_adapter(loaded, /*quiet=*/false);
  config::require_files(loaded);  // before a model is downloaded
  warn_of_files_in_both(loaded.config.data);
  const auto model_path = locate_model(loaded, options, /*quiet=*/false);
  const config::RunConfig asked = loaded.config;
  const std::optional<ModelHeaders> headers =
      options.dry_run ? read_headers(model_path) : headers_if_readable(model_path);
  const Run run = resolve_run(std::move(loaded), model_path, headers ? &*headers : nullptr,
                              options.config, plan.world_size(), plan.local_world_size,
                              {.device = plan.device, .gpus = options.gpus});
  const bool on_gpu = plan.device == "cuda";
  if (options.dry_run) {
    print_dry_run(asked, run, *headers, on_gpu, launch::describe(plan));
    return static_cast<int>(ExitCode::kDone);
  }
  check_tuning_of(run, headers);
  warn_and_announce(asked, run, headers, on_gpu);
  const launch::RunLock lock(run.loaded.config.output.dir, plan.node_rank);
  std::optional<ReportAtEnd> report;
  if (plan.node_rank == 0) report.emplace(run.loaded.config.output.dir);
  log::info("{}", launch::describe(plan));
  log::info("run directory: {}", run.loaded.config.output.dir);
  return launch::supervise(
      {.plan = plan,
       .environment = env,
       .command = worker_command(options, run, plan.workers_device, /*is_restart=*/false),
       .restart_command = worker_command(options, run, plan.workers_device, /*is_restart=*/true),
       .run_dir = run.loaded.config.output.dir,
       .max_restarts = options.max_restarts,
       .stall_s = stall_report_s(parse_duration_s(run.loaded.config.parallel.stall_after).value(),
                                 parse_duration_s(run.loaded.config.parallel.timeout).value()),
       .grace_s = launch::grace_from_environment(env, launch::SuperviseOptions{}.grace_s)});
}

}  // namespace

namespace {

/// A job that its scheduler restarted resumes its run.
bool is_started_again(const launch::Environment& env) {
  for (const char* name : {"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}) {
    const auto count = env.find(name);
    if (count != env.end() && !count->second.empty() && count->second != "0") return true;
  }
  return false;
}

}  // namespace

int run_train(const TrainOptions& asked) {
  // A run continues if its output pipe is closed (`sftrun train | head`), because its log is also
  // in a file. A dry run only prints.
  if (!asked.dry_run) ::signal(SIGPIPE, SIG_IGN);
  const launch::Environment env = launch::current_environment();
  TrainOptions options = asked;
  if (options.overwrite && is_started_again(env)) options.overwrite = false;
  const auto external = launch::external_worker(env, options.asks_for_processes());
  if (external) return run_worker(options, *external, env);
  return run_launcher(options, env);
}

}  // namespace sftrun::app
