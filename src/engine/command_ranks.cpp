#include "command_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "commands.h"
#include "cuda_library.h"
#include "rank_threads.h"
#include "sftrun/config/axes.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/data/input_records.h"

namespace sftrun::engine {
namespace {

/// nullopt: each process has all of a model.
std::optional<config::ParallelConfig> parallel_of(const app::RanksRequest& request,
                                                  const launch::WorkerEnv& env) {
  if (!request.parallel) return std::nullopt;
  nlohmann::ordered_json settings = config::to_json(config::RunConfig{});
  config::Places flags;
  const nlohmann::ordered_json asked = app::json_of(*request.parallel);
  for (const auto& [key, value] : asked.items()) {
    if (value.is_null()) continue;
    settings.at("parallel")[key] = value;
    flags["parallel." + key] = fmt::format("--{} on the command line", key);
  }
  config::ParallelConfig parallel = config::from_json(settings).parallel;
  config::resolve_axes(parallel, env.world_size, env.local_world_size, flags);
  if (!parallel.axes.divides_model() && !parallel.axes.shards_weights()) return std::nullopt;
  return parallel;
}

bool has_device_map(const app::RanksRequest& request) {
  return request.parallel && request.parallel->strategy == "device_map";
}

/// Stages of the model on the devices of this process: all GPUs, or as many as `parallel.pp` says.
int num_stages(const app::RanksRequest& request) {
  const std::optional<int> asked = request.parallel->pp;
  const bool may_use_gpus = request.compute.device != "cpu";
  const int gpus = may_use_gpus ? load_cuda_library().num_devices : 0;
  if (gpus > 0 && asked.value_or(1) > gpus) {
    throw ConfigError(fmt::format("--pp {} and {} GPUs", *asked, gpus), "--pp on the command line",
                      fmt::format("give at most {}", gpus));
  }
  return asked.value_or(std::max(1, gpus));
}

}  // namespace

int run_as_ranks(const app::RanksRequest& request, const FailureContext& context,
                 const std::function<int(const app::RanksRequest& request, Rank& rank)>& body) {
  const launch::WorkerEnv env = launch::worker_env();
  if (request.folder && (env.supervised || env.world_size > 1)) {
    quiet_libtorch();
    configure_logging(env, *request.folder);
  }
  set_threads(request.compute.threads);
  Rank rank;
  const auto run = [&](const app::RanksRequest& asked, Rank& of_thread) {
    const int code = body(asked, of_thread);
    of_thread.comm().leave();
    return code;
  };
  try {
    if (!has_device_map(request)) return run(request, rank);
    app::RanksRequest as_pipeline = request;
    const int stages = num_stages(request);
    as_pipeline.parallel = {.strategy = "pipeline", .pp = stages};
    as_pipeline.in_one_process = true;
    if (stages == 1) as_pipeline.parallel.reset();
    std::vector<int> gpus;
    for (int stage = 0; stage < stages; ++stage) gpus.push_back(stage);
    return run_stage_threads(rank, gpus, context,
                             [&](Rank& of_thread) { return run(as_pipeline, of_thread); });
  } catch (...) {
    // Reported while the other ranks are still connected: their errors must not come first.
    const Failure failure = report_failure(context, rank);
    rank.abandon(failure.text);
    return failure.code;
  }
}

void write_result(const app::RanksRequest& request, const Rank& rank, const std::string& text) {
  const std::string file = rank.env().supervised
                               ? (std::filesystem::path(request.folder.value()) / "result").string()
                               : "-";
  data::write_records(file, text, [&rank] { return rank.stop_exit_code(); });
}

CommandRanks::CommandRanks(const app::RanksRequest& request, Rank& rank)
    : request_(request), rank_(rank), parallel_(parallel_of(request, rank.env())) {}

void CommandRanks::require_one_copy() const {
  if (rank_.env().world_size == 1 || (parallel_ && parallel_->axes.data_parts() == 1)) return;
  throw ConfigError(
      fmt::format("the {} processes would have more than one copy of the model, or shards of it",
                  rank_.env().world_size),
      "--strategy on the command line",
      "use --strategy tensor or pipeline, without sizes or with --tp times --pp processes");
}

int CommandRanks::connect() {
  // Copies exchange numbers of records only, which needs no device.
  const at::Device device =
      parallel_ ? choose_compute(request_.compute, rank_.gpu()).device : at::kCPU;
  return rank_.connect(parallel_.value_or(config::ParallelConfig{}), device)
             ? 0
             : rank_.stop_exit_code();
}

int CommandRanks::load_model(const app::ModelRequest& request, LoadedModel& loaded,
                             SharedBases* bases) {
  const bool is_first = !std::exchange(has_told_, true);
  if (parallel_) {
    const int code =
        load_part(request, request_.compute, *parallel_, rank_, loaded, bases, is_first);
    if (code == 0 && rank_.is_main() && is_first) tell_of_division();
    return code;
  }
  return rank_.interruptible([&] {
    loaded = engine::load_model(request, request_.compute, rank_.gpu(), bases, is_first);
  });
}

void CommandRanks::tell_of_division() const {
  config::Axes axes = parallel_->axes;
  axes.stages_in_process = request_.in_one_process;
  log::info("the model is divided: {}", config::describe(axes));
}

}  // namespace sftrun::engine
