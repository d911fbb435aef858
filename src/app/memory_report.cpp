#include "memory_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine_location.h"
#include "model_source.h"
#include "run_forecast.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/foreign/load.h"
#include "sftrun/launch/launch_plan.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/plan/gpu_cards.h"
#include "sftrun/plan/quant_notes.h"
#include "sftrun/plan/stored_bytes.h"
#include "sftrun/spec/quantization_config.h"
#include "teacher_source.h"

namespace sftrun::app {
namespace {

/// NVML counts memory that the driver keeps for itself; CUDA does not.
constexpr uint64_t kDriverBytes = uint64_t{512} << 20;

/// "2", "0,2,3" or "1,": GPUs of this machine. "4090" is a card.
bool names_gpus_here(const std::string& gpus) {
  constexpr int kMaxGpus = 64;
  std::vector<std::string> items = split(gpus, ',');
  if (items.size() > 1 && items.back().empty()) items.pop_back();
  return std::all_of(items.begin(), items.end(), [](const std::string& item) {
    int number = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
    return error == std::errc() && end == item.data() + item.size() && number < kMaxGpus;
  });
}

int processes_of(const TrainOptions& options, const config::RunConfig& config, int64_t num_cards) {
  if (has_device_map(config.parallel)) return 1;
  int64_t number = num_cards;
  const std::string& asked = options.nproc_per_node;
  std::from_chars(asked.data(), asked.data() + asked.size(), number);  // words mean all cards
  if (number > num_cards) {
    throw ConfigError(fmt::format("{} processes for {}; each needs a GPU of its own", number,
                                  counted(num_cards, "GPU")),
                      "--nproc-per-node on the command line",
                      fmt::format("lower it to {}, or name more GPUs with --gpus", num_cards));
  }
  return static_cast<int>(number);
}

PlannedDevices cards_by_name(const TrainOptions& options, const config::RunConfig& config) {
  const std::string where = "--gpus on the command line";
  if (options.device == "cpu") {
    throw ConfigError("--gpus names GPUs, and --device is cpu", where, "remove one of them");
  }
  PlannedDevices devices;
  std::vector<std::string> texts;
  int64_t count = 0;
  uint64_t smallest = UINT64_MAX;
  const std::vector<plan::GpuCards> named = plan::parse_gpu_cards(options.gpus, where);
  plan::require_usable(named, where);
  for (const plan::GpuCards& cards : named) {
    texts.push_back(fmt::format("{} x {}", cards.count, cards.card.name));
    count += cards.count;
    smallest = std::min(smallest, cards.card.memory_bytes);
  }
  const int local = processes_of(options, config, count);
  constexpr int64_t kHalfBytes = 2, kFullBytes = 4;
  devices.text = join(texts, ", ");
  if (options.nnodes > 1) devices.text += fmt::format(" on each of {} machines", options.nnodes);
  devices.place = {
      .devices = {.memory_bytes = smallest,
                  .element_bytes =
                      config.model.dtype == config::DTypeChoice::kFp32 ? kFullBytes : kHalfBytes,
                  .on_gpu = true,
                  .world_size = options.nnodes * local,
                  .local_world_size = local},
      .device = "cuda",
      .num_gpus = count};
  return devices;
}

PlannedDevices devices_here(const TrainOptions& options, const config::RunConfig& config) {
  const launch::Machine machine = launch::this_machine(has_cuda_kernels());
  if (options.device == "cuda" && machine.gpus.gpus.empty()) {
    throw ConfigError(fmt::format("this machine has no usable GPU: {}", machine.gpus.problem),
                      "--device cuda on the command line",
                      "name the GPUs of the machine that will train: --gpus \"2x RTX4090\"");
  }
  const launch::LaunchPlan launch =
      launch::make_plan({.nproc_per_node = options.nproc_per_node,
                         .gpus = options.gpus,
                         .device = options.device,
                         .nnodes = options.nnodes,
                         .master_addr = options.nnodes > 1 ? "127.0.0.1" : "",
                         .is_one_process = has_device_map(config.parallel)},
                        machine);
  PlannedDevices devices{.place = place_here(config, launch.world_size(), launch.local_world_size,
                                             launch.device, options.gpus),
                         .are_here = true};
  plan::RunDevices& run = devices.place.devices;
  const launch::Environment worker =
      launch::worker_environment(launch, launch::current_environment(), 0, /*master_port=*/1);
  const std::string& threads = worker.at("OMP_NUM_THREADS");  // the user may have set it
  std::from_chars(threads.data(), threads.data() + threads.size(), run.threads);
  if (run.on_gpu) {
    run.memory_bytes -= std::min(run.memory_bytes, kDriverBytes);
    devices.text = fmt::format("{} x {}", launch.gpus.size(), launch.gpu_name);
  } else {
    devices.text = "CPU";
  }
  return devices;
}

/// Sizes of quantised matrices whose files are not here, by the method that config.json names.
void assume_files(const std::filesystem::path& model, ModelHeaders& headers,
                  std::vector<std::string>& notes) {
  if (headers.has_weights || headers.knows_form) return;
  const std::filesystem::path file = model / "config.json";
  const auto config =
      spec::read_quantization_config(parse_python_json(read_utf8_file(file)), file.string());
  if (!config) return;
  plan::AssumedFiles assumed = plan::assumed_files(headers.arch, *config);
  headers.knows_form = true;
  notes.push_back(
      fmt::format("the weights are not on this machine: their sizes are estimated for {}, which "
                  "config.json names",
                  config->method));
  headers.stored = std::move(assumed.stored);
  headers.blocks = std::move(assumed.blocks);
  headers.block_kinds = {assumed.kind};
}

bool has_training_data(const config::DataConfig& data) {
  return std::ranges::all_of(
      data.train, [](const config::DataSource& source) { return exists_or_matches(source.path); });
}

/// Those of the flags, else of the data.
void plan_images(const std::filesystem::path& model_path, const ModelHeaders& model,
                 const config::RunConfig& config, MemoryReport& report) {
  plan::RunDevices& devices = report.devices.place.devices;
  devices.tower = plan::TowerUse::of(config.tuning, model.arch, report.images.has_value());
  if (report.images) {
    devices.images = images_of_bin(*report.images, model_path, model.arch, config);
  } else if (!model.arch.vision) {
    return;
  } else if (has_training_data(config.data)) {
    report.images_of_data = plan_images_of_data(config, model_path, model.arch, devices);
  } else {
    report.notes.emplace_back(
        "the data are not on this machine: the plan has no images; --images plans for some");
  }
}

/// Batch sizes and packed sequences that follow from the data, where the data are here. Without them
/// the plan is for a large data set.
void fit_to_data(const std::filesystem::path& model_path, const ModelHeaders& model,
                 const BatchRequest& batches, MemoryReport& report) {
  config::RunConfig& config = report.config;
  if (config.data.streaming || !has_training_data(config.data)) return;
  plan::RunDevices& devices = report.devices.place.devices;
  using enum config::LongestBatchFirst;
  const config::LongestBatchFirst longest = config.train.longest_batch_first;
  const bool tries_longest = longest == kOn || (longest == kAuto && devices.on_gpu);
  try {
    const Forecast found =
        forecast(config, try_training_data(config, model_path, model, /*counts_small_data=*/true),
                 batches, tries_longest);
    devices.tokens_of_bin = found.tokens_of_bin;
    config.train.batch_size = found.sizes.batch_size;
    config.train.eval_batch_size = found.sizes.eval_batch_size;
    config.train.grad_accum = found.sizes.grad_accum;
    config.train.global_batch_size = found.sizes.global_batch_size;
    if (found.bin_tokens > 0) config.data.bin_tokens.value = found.bin_tokens;
    if (!found.knows_sizes)
      report.notes.emplace_back("batch sizes are estimated from the first records of the data");
  } catch (const Error& error) {
    report.notes.push_back(
        fmt::format("the data were not read ({}): the batch sizes are for a large data set; a "
                    "small one gets smaller batches",
                    error.message()));
  }
}

/// The largest sizes, and what would make a run fit.
void find_limits(const ModelHeaders& model, MemoryReport& report) {
  const plan::RunDevices& devices = report.devices.place.devices;
  report.largest_batch_size = plan::largest_full_batch_size(report.arch, report.config, devices,
                                                            model.stored, report.memory_bytes());
  report.largest_batch_size_of_data = plan::largest_batch_size(report.arch, report.config, devices,
                                                               model.stored, report.memory_bytes());
  report.longest = plan::longest_sequences(report.arch, report.config, devices, model.stored,
                                           report.memory_bytes());
  if (!report.fits())
    report.change = plan::cheapest_change(report.arch, report.config, devices, model.stored,
                                          report.memory_bytes(), model.blocks);
}

}  // namespace

PlannedDevices planned_devices(const TrainOptions& options, const config::RunConfig& config) {
  return options.gpus.empty() || names_gpus_here(options.gpus) ? devices_here(options, config)
                                                               : cards_by_name(options, config);
}

std::string checkpointing_word(config::Checkpointing again) {
  switch (again) {
    case config::Checkpointing::kNone:
      return "false";
    case config::Checkpointing::kLayer:
      return "true";
    case config::Checkpointing::kAttention:
      return "attention";
    case config::Checkpointing::kMlp:
      return "mlp";
  }
  SFTRUN_CHECK(false);
}

int64_t process_error_bytes(bool on_gpu) {
  constexpr int64_t kMiB = 1 << 20, kOfGpu = 512, kOfCpu = 128;
  return kMiB * (on_gpu ? kOfGpu : kOfCpu);
}

namespace {

MemoryReport report_of(const TrainOptions& options, config::LoadedConfig loaded,
                       const std::optional<PlannedImages>& images) {
  MemoryReport report{.images = images};
  report.devices = planned_devices(options, loaded.config);
  const config::ModelConfig& asked = loaded.config.model;
  const ModelSource source = find_model({.name = asked.name,
                                         .revision = asked.revision,
                                         .where = loaded.place_of("model.name"),
                                         .headers_only = true,
                                         .adapter_way = AdapterWay::kSetting});
  const std::filesystem::path& path = source.path;
  ModelHeaders model = read_headers(path, loaded.config);
  assume_files(path, model, report.notes);
  check_tuning(loaded.config.tuning, model.arch);
  RunPlace& place = report.devices.place;
  plan_images(path, model, loaded.config, report);
  const auto teacher = find_teacher(loaded, {.headers_only = true});
  if (teacher) place.devices.teacher = teacher->use(loaded.config.train);
  Run run = resolve_run(std::move(loaded), path, &model, options.config, place);
  report.config = std::move(run.loaded.config);
  resolve_auto(report.config, model, place.devices.on_gpu);
  constexpr int64_t kHalfBytes = 2, kFullBytes = 4;  // train.bf16 may have set the dtype
  place.devices.element_bytes =
      report.config.model.dtype == config::DTypeChoice::kFp32 ? kFullBytes : kHalfBytes;
  report.arch = model.arch;
  fit_to_data(path, model, run.batches, report);
  const std::vector<std::string>& warnings = run.loaded.warnings;
  report.notes.insert(report.notes.end(), warnings.begin(), warnings.end());
  report.plan = plan::memory_plan(report.arch, report.config, place.devices, model.stored);
  report.answers = plan::answers_memory(report.arch, report.config, place.devices, report.plan);
  report.kinds = plan::layer_kinds(report.arch, report.config,
                                   plan::micro_batch_shape(report.config, place.devices));
  for (plan::StrategyChoice& choice : plan::strategy_choices(
           report.arch, report.config, place.devices, model.stored, model.blocks)) {
    StrategyRow row{.choice = std::move(choice)};
    if (row.choice.config)
      row.plan =
          plan::memory_plan(report.arch, *row.choice.config, *row.choice.devices, model.stored);
    report.strategies.push_back(std::move(row));
  }
  find_limits(model, report);
  return report;
}

}  // namespace

MemoryReport memory_report(const TrainOptions& options,
                           const std::optional<PlannedImages>& images) {
  config::LoadedConfig loaded = foreign::load_config(options.config, options.overrides);
  const config::Places places = loaded.places;
  return config::with_places(places, [&] { return report_of(options, std::move(loaded), images); });
}

}  // namespace sftrun::app
