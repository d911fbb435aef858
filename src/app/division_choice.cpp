#include "division_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "division_check.h"
#include "engine_location.h"
#include "gpu_view.h"
#include "sftrun/config/base_record.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/quant_format.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/foreign/load.h"
#include "sftrun/launch/scheduler_env.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/observe/system.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/spec/feature_projectors.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/projectors.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

/// The devices, and words for them.
struct PlacesOfUse {
  plan::UseDevices devices;
  std::string device;           ///< "NVIDIA H100", "process"
  bool is_known = true;         ///< its memory is
  uint64_t used_by_others = 0;  ///< bytes of the device that `devices` counts

  /// "has 23.5 GiB", with what others use.
  std::string memory() const {
    const std::string bytes = format_bytes(devices.memory_bytes);
    return used_by_others == 0 ? "has " + bytes
                               : fmt::format("has {} free (other processes use {})", bytes,
                                             format_bytes(used_by_others));
  }
};

struct GpuBytes {
  uint64_t usable = 0;     ///< by a process
  uint64_t by_others = 0;  ///< what other processes use
};
/// Of the GPU, among those that CUDA shows, with the least memory that a process can use.
/// @param counts_others false: as if no other process used the GPUs, which machines that must choose
/// alike cannot see of each other   @return nullopt: the driver does not say
std::optional<GpuBytes> gpu_bytes(const launch::Machine& machine, bool counts_others) {
  constexpr uint64_t kDriverBytes = uint64_t{512} << 20;  // NVML counts it, CUDA does not
  constexpr uint64_t kMinOfOthers = uint64_t{1} << 30;    // less may be the driver's
  const GpuView view = view_of(machine.gpus);
  if (view.has_slice()) return std::nullopt;
  std::optional<GpuBytes> smallest;
  for (const launch::GpuInfo& gpu : view.shown.gpus) {
    if (!gpu.memory_total_bytes) return std::nullopt;
    const uint64_t total =
                       *gpu.memory_total_bytes - std::min(*gpu.memory_total_bytes, kDriverBytes),
                   free = counts_others ? gpu.memory_free_bytes.value_or(total) : total,
                   usable = std::min(total, free);
    if (!smallest || usable < smallest->usable)
      smallest = {usable, total - usable < kMinOfOthers ? 0 : total - usable};
  }
  return smallest;
}

int64_t element_bytes(const std::string& dtype, bool on_gpu) {
  constexpr int64_t kHalf = 2, kFull = 4;
  if (dtype == "auto") return on_gpu || plan::cpu_multiplies_bf16() ? kHalf : kFull;
  return dtype == "fp32" ? kFull : kHalf;
}

PlacesOfUse places_of(const UsedModel& used, const LaunchFlags& launch,
                      const launch::Machine& machine, uint64_t host_bytes) {
  launch::LaunchRequest request = launch.request();
  request.may_share_gpus = machine.env.contains("SFTRUN_SHARE_GPUS");
  const launch::LaunchPlan plan = launch::make_plan(request, machine);
  PlacesOfUse places{.device = plan.gpus.empty() ? "process" : plan.gpu_name};
  plan::UseDevices& devices = places.devices;
  devices.on_gpu = plan.device == "cuda";
  devices.element_bytes = element_bytes(used.dtype, devices.on_gpu);
  devices.count = devices.on_gpu ? std::ssize(plan.gpus) : plan.local_world_size;
  if (launch.nproc_per_node != "auto" || plan.nnodes > 1) {
    devices.processes = plan.world_size();
    devices.of_machine = plan.local_world_size;
  }
  const auto of_gpu = devices.on_gpu ? gpu_bytes(machine, plan.nnodes == 1) : std::nullopt;
  places.is_known = !devices.on_gpu || of_gpu;
  places.used_by_others = of_gpu ? of_gpu->by_others : 0;
  constexpr uint64_t kUnknown = uint64_t{1} << 62;
  devices.memory_bytes =
      devices.on_gpu ? (of_gpu ? of_gpu->usable : kUnknown)
                     : host_bytes / static_cast<uint64_t>(std::max(1, plan.local_world_size));
  return places;
}

/// Of the files of a model or an adapter; 0: they cannot be read.
uint64_t bytes_of_weights(const fs::path& path) {
  std::error_code code;
  if (!is_folder(path)) {
    const uint64_t bytes = fs::file_size(path, code);
    return code ? 0 : bytes;
  }
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path, code)) {
    const fs::path extension = entry.path().extension();
    if (extension != ".safetensors" && extension != ".gguf") continue;
    const uint64_t of_file = fs::file_size(entry.path(), code);
    bytes += code ? 0 : of_file;
  }
  return bytes;
}

/// Whether a copy fits for certain, by the size of its files. Their headers, with the vocabulary,
/// take up to a second.
bool is_small(const UsedModel& used, const plan::UseDevices& devices) {
  constexpr uint64_t kMax = 4, kOther = uint64_t{2} << 30;  // fp32 of 8-bit files; caches
  uint64_t bytes = bytes_of_weights(used.model);
  for (const fs::path& adapter : used.adapters) bytes += bytes_of_weights(adapter);
  return kMax * bytes + kOther < devices.memory_bytes;
}

/// How the base is held: as the first adapter's run held it, else in its stored format.
config::TuningConfig tuning_of(const UsedModel& used) {
  config::TuningConfig tuning;
  tuning.mode = config::TuningMode::kLora;
  tuning.quant = config::Quant::kAuto;
  if (used.adapters.empty() || used.as_stored) return tuning;
  const auto record = config::read_base_record(used.adapters.front());
  return record && record->tuning.quantises_base() && !record->pissa() ? record->tuning : tuning;
}

struct ReadModel {
  plan::ModelFiles files;
  plan::ModelUse use;
};
ReadModel read_model(const UsedModel& used, const plan::UseDevices& devices) {
  ModelHeaders headers = read_headers(used.model);
  ReadModel read{
      .files = {std::move(headers.arch), std::move(headers.stored), std::move(headers.blocks)},
      .use = {.tuning = tuning_of(used),
              .sequences = used.sequences,
              .has_one_copy = used.has_one_copy}};
  for (const fs::path& adapter : used.adapters) {
    spec::add_projectors(read.files.arch, weights::read_projectors(adapter));
    const spec::LoraSpec lora = weights::load_adapter_config(adapter, read.files.arch).lora;
    read.use.adapter_values += spec::num_lora_values(lora, read.files.arch);
    // What is left of the base's values fits no blocks.
    if (lora.pissa) read.files.stored.clear(), read.files.blocks.clear();
  }
  read.use.sequences.element_bytes = devices.element_bytes;
  const int64_t positions = read.files.arch.max_position_embeddings;
  int64_t& tokens = read.use.sequences.tokens;
  if (positions > 0) tokens = std::min(tokens, positions);
  return read;
}

/// nullopt: it cannot be read, which the engine reports.
std::optional<ReadModel> read_if_possible(const UsedModel& used, const plan::UseDevices& devices) {
  try {
    return read_model(used, devices);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// The division of the run that trained the model or the first adapter.
std::optional<config::Axes> axes_of_run(const UsedModel& used) {
  const fs::path run = used.adapters.empty() ? used.model.parent_path()  // of its folder `model`
                                             : observe::run_directory_of(used.adapters.front()),
                 yaml = run / "config.resolved.yaml";
  if (run.empty() || !leads_to_file(yaml)) return std::nullopt;
  try {
    const config::ParallelConfig parallel = foreign::load_config(yaml, {}).config.parallel;
    return config::Axes{.pp = parallel.pp.value_or(1),
                        .tp = parallel.tp.value_or(1),
                        .stages_in_process = parallel.strategy == config::Strategy::kDeviceMap};
  } catch (const Error&) {  // of another version
    return std::nullopt;
  }
}

std::string gib(int64_t bytes) {
  return format_bytes(static_cast<uint64_t>(bytes));
}

/// The cheapest change with which the model fits.
std::string fix_of(const UsedModel& used, const ReadModel& read, const PlacesOfUse& places,
                   const plan::UseDevices& all) {
  const auto fits = [&](const ReadModel& tried, const plan::UseDevices& devices) {
    const auto choice = plan::choose_division(tried.files, tried.use, devices);
    return choice && choice->fits ? std::optional(choice->division) : std::nullopt;
  };
  if (const auto wider = fits(read, all))
    return fmt::format("use more of the GPUs of this machine: {}", wider->flags());
  ReadModel smaller = read;
  smaller.use.tuning.quant = config::quant_of(QuantFormat::kNf4);
  smaller.files.stored.clear(), smaller.files.blocks.clear();
  if (!read.use.tuning.quantises_base() && read.files.stored.empty() && fits(smaller, all))
    return fmt::format("quantise it to 4 bits: {}, and use that as --model",
                       config::quantize_command(smaller.use.tuning, used.model.string()));
  constexpr int64_t kMaxDevices = 16;
  plan::UseDevices more = places.devices;
  more.processes.reset(), more.of_machine.reset();
  for (more.count = all.count + 1; more.count <= kMaxDevices; ++more.count)
    if (const auto division = fits(read, more))
      return fmt::format("use a machine with {} such GPUs ({}), GPUs with more memory{}",
                         more.count, division->flags(),
                         places.devices.on_gpu ? ", or --device cpu" : "");
  return "use GPUs with more memory, or a smaller model";
}

[[noreturn]] void fail_to_fit(const UsedModel& used, const ReadModel& read,
                              const PlacesOfUse& places, const plan::UseDivision& least,
                              const plan::UseDevices& all) {
  const plan::UseDevices& devices = places.devices;
  const std::string needs = least.divides() ? fmt::format("a part of it needs {} ({})",
                                                          gib(least.memory.least()), least.flags())
                                            : fmt::format("it needs {}", gib(least.memory.least()));
  throw OutOfMemoryError(
      fmt::format("the model does not fit: {}, and {} {}", needs,
                  devices.on_gpu ? "each " + places.device : "a process", places.memory()),
      used.model.string(),
      devices.on_gpu ? fix_of(used, read, places, all)
                     : "use a machine with more memory, or a quantised or a smaller model");
}

void set_flags(const plan::UseDivision& chosen, LaunchFlags& launch, DivisionFlags& division) {
  if (chosen.strategy != config::Strategy::kAuto)
    division.strategy = config::strategy_name(chosen.strategy);
  if (chosen.tp > 1) division.tp = chosen.tp;
  if (chosen.pp > 1) division.pp = chosen.pp;
  launch.nproc_per_node = std::to_string(chosen.processes);
}

void tell(const plan::UseDivision& chosen, bool is_of_run, const plan::UseMemory& whole,
          const PlacesOfUse& places) {
  const auto of_device = static_cast<int64_t>(places.devices.memory_bytes);
  const std::string why =
      whole.needed() > of_device
          ? fmt::format("it needs {}, and {} {}", gib(whole.needed()),
                        places.devices.on_gpu ? "a " + places.device : "each of the processes",
                        places.memory())
          : fmt::format("{} answer together", counted(chosen.processes, "process"));
  log::info("dividing the model, as with {}{}: {}", chosen.flags(),
            is_of_run ? " (the division of its training run)" : "", why);
}

plan::UseMemory memory_of_whole(const ReadModel& read, plan::UseDevices devices) {
  devices.count = 1;
  devices.processes.reset(), devices.of_machine.reset();
  return plan::choose_division(read.files, read.use, devices)->division.memory;
}

/// Those of this machine, also where flags leave some out.
plan::UseDevices all_devices(plan::UseDevices devices, const launch::Machine& machine) {
  devices.processes.reset(), devices.of_machine.reset();
  if (devices.on_gpu) devices.count = static_cast<int64_t>(view_of(machine.gpus).num_gpus());
  return devices;
}

/// Several machines must do the same, and see only their own devices.
[[noreturn]] void ask_for_flags(plan::UseDivision chosen, int nnodes, const plan::UseMemory& whole,
                                const PlacesOfUse& places) {
  chosen.processes /= nnodes;
  throw ConfigError(fmt::format("the model needs {}, and a {} {}", gib(whole.needed()),
                                places.device, places.memory()),
                    "--nnodes on the command line",
                    fmt::format("name the division on every machine, as in {}", chosen.flags()));
}

/// Flags that a device map by name excludes.
void check_device_map(const LaunchFlags& launch, const DivisionFlags& division) {
  if (division.device_map.empty()) return;
  const bool names_other = division.strategy != "auto" && division.strategy != "device_map";
  if (!names_other && !division.tp && !division.pp && !launch.asks_for_several()) return;
  throw ConfigError(
      fmt::format("--device-map {} puts the layers on the GPUs of one process, and another flag "
                  "divides the model too",
                  division.device_map),
      "--device-map on the command line",
      "leave it out, or the flags --strategy, --tp, --pp and --nproc-per-node");
}

/// Flags that name a division, whose model and processes are known.
void check_given(const UsedModel& used, const DivisionFlags& division, int64_t processes,
                 int nnodes) {
  const auto read = read_if_possible(used, {});
  check_division(division,
                 {.command = used.command,
                  .has_one_copy = used.has_one_copy,
                  .takes_shards = used.takes_shards,
                  .nnodes = nnodes,
                  .is_stream = used.is_one_process},
                 read ? &read->files : nullptr, read ? read->use.tuning : tuning_of(used),
                 processes);
}

int64_t processes_of(const UsedModel& used, const LaunchFlags& launch,
                     const DivisionFlags& division, const launch::Machine& machine) {
  if (division.strategy == "device_map") return 1;
  if (used.is_one_process && !launch.asks_for_processes()) return 1;
  return launch::make_plan(launch.request(), machine).world_size();
}

/// `--strategy device_map` and --device-map put layers on GPUs; on a CPU, --pp makes stages.
void warn_of_idle_map(const LaunchFlags& launch, const DivisionFlags& division,
                      const launch::Machine& machine) {
  const bool has_flag = !division.device_map.empty();
  if (!has_flag && (division.strategy != "device_map" || division.pp.value_or(1) > 1)) return;
  launch::LaunchRequest request = launch.request();
  request.nproc_per_node = "1";
  if (launch::make_plan(request, machine).device == "cuda") return;
  log::warn("{} has no effect on a CPU: there are no GPUs to put layers on",
            has_flag ? fmt::format("--device-map {}", division.device_map)
                     : std::string("--strategy device_map"));
}

}  // namespace

std::vector<fs::path> adapter_paths(const std::vector<std::string>& adapters) {
  std::vector<fs::path> paths;
  for (const std::string& adapter : adapters)
    if (!adapter.empty()) paths.emplace_back(adapter);
  return paths;
}

void choose_division(const UsedModel& used, const launch::Machine& machine, uint64_t host_bytes,
                     LaunchFlags& launch, DivisionFlags& division) {
  check_device_map(launch, division);
  if (!launch.asks_for_several()) warn_of_idle_map(launch, division, machine);
  if (division.device_map == "balanced") division.strategy = "device_map";
  if (division.is_given())
    return check_given(used, division, processes_of(used, launch, division, machine),
                       launch.nnodes);
  PlacesOfUse places = places_of(used, launch, machine, host_bytes);
  plan::UseDevices& devices = places.devices;
  devices.is_one_process = used.is_one_process || division.device_map == "auto";
  const bool must_divide =
      used.has_one_copy && !devices.is_one_process && devices.processes.value_or(1) > 1;
  if (devices.is_one_process && launch.asks_for_several()) return;  // which is refused later
  if ((used.has_one_copy && !must_divide) || devices.is_one_process) launch.nproc_per_node = "1";
  if (!must_divide && (!places.is_known || is_small(used, devices))) return;
  const auto read =
      must_divide ? std::optional(read_model(used, devices)) : read_if_possible(used, devices);
  if (!read) return;
  const auto axes = axes_of_run(used);
  const auto choice =
      plan::choose_division(read->files, read->use, devices, axes ? &*axes : nullptr);
  if (!choice) {
    throw ConfigError(fmt::format("the model cannot be divided over {}",
                                  counted(devices.processes.value_or(devices.count), "process")),
                      "--nproc-per-node on the command line",
                      "leave it out, or give another number");
  }
  const plan::UseDivision& chosen = choice->division;
  const plan::UseMemory whole = memory_of_whole(*read, devices);
  const auto of_device = static_cast<int64_t>(devices.memory_bytes);
  if (!choice->fits && chosen.memory.least() > of_device)
    fail_to_fit(used, *read, places, chosen, all_devices(devices, machine));
  if (!chosen.divides()) return;
  if (launch.nnodes > 1) {
    if (!must_divide && whole.least() <= of_device) return;
    ask_for_flags(chosen, launch.nnodes, whole, places);
  }
  tell(chosen, axes && axes->pp == chosen.pp && axes->tp == chosen.tp, whole, places);
  if (!choice->fits)
    log::warn("the model may run out of memory: the estimate is {} of {} per device",
              gib(chosen.memory.needed()), gib(of_device));
  set_flags(chosen, launch, division);
}

void choose_division(const UsedModel& used, LaunchFlags& launch, DivisionFlags& division) {
  const launch::Environment env = launch::current_environment();
  // Ranks of another launcher may be on machines that differ.
  if (const auto worker = launch::external_worker(env, launch.asks_for_processes())) {
    const auto found = worker->variables.find("WORLD_SIZE");
    const std::string text = found != worker->variables.end() ? found->second
                             : env.contains("WORLD_SIZE")     ? env.at("WORLD_SIZE")
                                                              : "";
    const int64_t ranks = to_number(text, 0);
    if (division.is_given() && ranks > 0) check_given(used, division, ranks, launch.nnodes);
    return;
  }
  choose_division(used, launch::this_machine(has_cuda_kernels()),
                  observe::memory_info().total_bytes, launch, division);
}

}  // namespace sftrun::app
