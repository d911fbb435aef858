#include <signal.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "data_source_finder.h"
#include "engine_location.h"
#include "planned_images.h"
#include "run_check.h"
#include "run_inputs.h"
#include "run_resolution.h"
#include "run_statements.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/stall.h"
#include "sftrun/core/units.h"
#include "sftrun/foreign/load.h"
#include "sftrun/launch/error_file.h"
#include "sftrun/launch/gpu.h"
#include "sftrun/launch/run_lock.h"
#include "sftrun/launch/scheduler_env.h"
#include "sftrun/launch/supervisor.h"
#include "sftrun/observe/foreign_results.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/plan/lora_plan.h"
#include "sftrun/plan/memory_change.h"
#include "train_end.h"

namespace sftrun::app {
namespace {

/// --overwrite would move them away before they are read.
void require_inputs_stay(const Run& run) {
  const config::RunConfig& config = run.loaded.config;
  std::error_code ignored;
  const auto canonical = [&](const std::filesystem::path& path) {
    return std::filesystem::weakly_canonical(path, ignored);
  };
  const std::filesystem::path run_dir = canonical(config.output.dir);
  const auto require = [&](const char* key, const std::filesystem::path& input) {
    const std::filesystem::path inside = canonical(input).lexically_relative(run_dir);
    // Earlier runs that were moved aside stay where they are.
    if (input.empty() || inside.empty() || inside.begin()->string() == ".." ||
        inside.begin()->string().starts_with("old-"))
      return;
    throw ConfigError(
        fmt::format("{} is in the run that --overwrite moves aside: {}", key, input.string()),
        run.loaded.place_of(key), "choose another output.dir, without --overwrite");
  };
  require("tuning.lora.init_from", config.tuning.lora.init_from);
  if (config.train.reference_model() == config::ReferenceModel::kPath)
    require("train.reference", config.train.reference);
  require("train.teacher", config.train.teacher);
  require("model.name", run.model_path);
}

/// Whether the run may write into its directory, before anything is written. The engine looks again,
/// knowing which checkpoints are whole.
void require_free_directory(const TrainOptions& options, const Run& run) {
  const std::filesystem::path run_dir = run.loaded.config.output.dir;
  if (options.overwrite) {
    observe::require_no_model(run_dir);
    return require_inputs_stay(run);
  }
  const bool names_checkpoint = options.resume != "auto" && options.resume != "never";
  if (!names_checkpoint && !has_entry(run_dir / "checkpoints"))
    observe::require_no_results(run_dir);
}

WorkerRequest worker_request(const TrainOptions& options, const Run& run) {
  const TeacherSource teacher = run.teacher.value_or(TeacherSource());
  return {.config = run.loaded.config,
          .places = run.loaded.places,
          .model_path = run.model_path.string(),
          .teacher_model = teacher.model.string(),
          .teacher_adapter = teacher.adapter,
          .device = options.device,
          .batch_size = run.batches.batch_size.value,
          .steps_are_auto = run.batches.steps_are_auto,
          .eval_batch_size_is_auto = run.batches.eval_follows,
          .max_micro_batch = run.batches.max_micro_batch,
          .resume = options.resume,
          .overwrite = options.overwrite,
          .allow_changed_data = options.allow_changed_data,
          .allow_changed_length = options.allow_changed_length,
          .allow_backend_change = options.allow_backend_change,
          .settings = words_of_settings(options),
          .profile = options.profile};
}

/// Checks the trainable parameters before data are tokenized. For a model without config.json the
/// engine reports the error.
void check_tuning_of(const Run& run, const std::optional<ModelHeaders>& headers) {
  const std::filesystem::path& model = run.model_path;
  if (!headers && is_folder(model) && !has_optional_file(model / "config.json")) return;
  spec::ArchSpec arch = headers ? headers->arch : read_arch(model);
  if (!headers)
    plan::add_projectors(arch, run.loaded.config, projectors_of_start(run.loaded.config));
  check_tuning(run.loaded.config.tuning, arch);
}

/// Trains as a rank of another launcher. If this is rank 0, its error is kept for run.json.
TrainEnd train_as_rank(const WorkerRequest& request, const std::filesystem::path& run_dir) {
  const std::filesystem::path file = absolute_path(run_dir) / "logs" / "error-rank-0.json";
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  ::setenv("SFTRUN_ERROR_FILE", file.c_str(), /*overwrite=*/1);
  TrainEnd end{{.exit_code = run_in_engine(request)}, {}};
  if (!end.has_failed()) return end;
  if (const auto error = launch::read_error_file(file)) end.error = text_of_error(error->message);
  return end;
}

/// Runs as a rank that another launcher (torchrun, Slurm, MPI) has started.
int run_worker(const TrainOptions& options, const launch::ExternalWorker& external,
               const launch::Environment& env, config::LoadedConfig loaded) {
  for (const auto& [name, value] : external.variables) ::setenv(name.c_str(), value.c_str(), 1);
  launch::Environment complete = env;
  complete.insert(external.variables.begin(), external.variables.end());
  const launch::WorkerEnv worker = launch::worker_env(complete);
  find_data(loaded, /*quiet=*/worker.rank != 0 || worker.supervised);
  locate_adapter(loaded, /*quiet=*/worker.rank != 0 || worker.supervised);
  locate_reference(loaded, /*quiet=*/worker.rank != 0 || worker.supervised);
  if (worker.rank == 0) require_files_of_run(loaded, options);
  if (worker.rank == 0 && !worker.supervised) warn_of_files_in_both(loaded.config.data);
  const auto model_path =
      locate_model(loaded, options, /*quiet=*/worker.rank != 0 || worker.supervised);
  const config::RunConfig asked = loaded.config;
  std::optional<ModelHeaders> headers;
  if (!worker.supervised)
    headers =
        options.dry_run ? read_headers(model_path, asked) : headers_if_readable(model_path, asked);
  RunPlace place = place_here(asked, worker.world_size, worker.local_world_size, options.device);
  if (options.max_micro_batch > 0) place.max_micro_batch = options.max_micro_batch;
  const auto teacher =
      locate_teacher(loaded, options, /*quiet=*/worker.rank != 0 || worker.supervised, place);
  std::string images;
  if (worker.supervised && !options.images_of_bin.empty()) {
    headers = headers_if_readable(model_path, asked);
    if (headers)
      plan_images_of_launcher(options.images_of_bin, asked, headers->arch, place.devices);
  } else if (headers) {
    images = plan_images_of_data(asked, model_path, headers->arch, place.devices);
  }
  Run run = resolve_run(std::move(loaded), model_path, headers ? &*headers : nullptr,
                        options.config, place);
  run.teacher = teacher;
  if (worker.supervised) return run_as_worker(worker_request(options, run));
  if (!images.empty()) run.loaded.notes.push_back(images);
  const std::string launch =
      fmt::format("started by {}: {}, rendezvous {}:{}", external.scheduler,
                  counted(worker.world_size, "worker"), worker.master_addr, worker.master_port);
  const bool on_gpu =
      options.device != "cpu" && !launch::this_machine(has_cuda_kernels()).gpus.gpus.empty();
  if (options.dry_run) {
    if (worker.rank == 0) {
      require_weights(asked.model.name, model_path);
      require_free_directory(options, run);
      print_dry_run(options, asked, run, *headers, on_gpu, launch);
    }
    return static_cast<int>(ExitCode::kDone);
  }
  check_tuning_of(run, headers);
  std::optional<launch::RunLock> lock;
  std::optional<ReportAtEnd> report;
  if (worker.rank == 0) {
    log::info("{}", launch);
    require_free_directory(options, run);
    warn_and_announce(asked, run, headers, on_gpu);
    lock.emplace(run.loaded.config.output.dir);
    report.emplace(run.loaded.config.output.dir);
  }
  const WorkerRequest request = worker_request(options, run);
  if (worker.rank != 0) return run_in_engine(request);
  return with_end_event(run.loaded.config,
                        [&] { return train_as_rank(request, run.loaded.config.output.dir); });
}

launch::LaunchRequest launch_request(const TrainOptions& options, const config::RunConfig& config,
                                     const launch::Environment& env) {
  launch::LaunchRequest request = options.request();
  request.is_one_process = has_device_map(config.parallel);
  request.may_share_gpus =
      config.parallel.backend == config::CommBackend::kGloo || env.contains("SFTRUN_SHARE_GPUS");
  return request;
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
  if (options.max_micro_batch > 0)
    arguments.insert(arguments.end(),
                     {"--max-micro-batch", std::to_string(options.max_micro_batch)});
  if (!run.images_of_bin.empty())
    arguments.insert(arguments.end(), {"--images-of-bin", run.images_of_bin});
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

/// With half the micro-batch, if the sizes are automatic and the launcher starts all ranks.
/// @param asked the configuration before it was resolved
std::optional<launch::SmallerStart> start_smaller(const TrainOptions& options, const Run& run,
                                                  const config::TrainConfig& asked,
                                                  const launch::LaunchPlan& plan) {
  if (!asked.batch_size.is_auto() || !asked.grad_accum.is_auto() || plan.nnodes > 1)
    return std::nullopt;
  // The sizes may depend on the data, which the workers read.
  const std::filesystem::path resolved =
      std::filesystem::path(run.loaded.config.output.dir) / "config.resolved.yaml";
  config::TrainConfig tried = foreign::load_config(resolved, {}).config.train;
  const int64_t too_large = tried.batch_size.value.value();
  if (too_large < 2) return std::nullopt;
  TrainOptions smaller = options;
  smaller.max_micro_batch = too_large / 2;
  const config::TrainConfig before = tried;
  config::set_target_batch(tried, *before.global_batch_size.value, {}, run.batches.dp_size,
                           smaller.max_micro_batch);
  return launch::SmallerStart{
      .notice =
          fmt::format("the longest micro-batch did not fit into memory: the run starts again "
                      "with train.batch_size {} and train.grad_accum {} (before {} and {}), "
                      "the same {} per step",
                      *tried.batch_size.value, *tried.grad_accum.value, *before.batch_size.value,
                      *before.grad_accum.value, *before.global_batch_size.value),
      .command = worker_command(smaller, run, plan.workers_device, /*is_restart=*/false),
      .restart_command = worker_command(smaller, run, plan.workers_device, /*is_restart=*/true)};
}

/// The cheapest change that fits, for a run that the kernel ended for its memory.
std::string memory_fix(const Run& run, const std::optional<ModelHeaders>& headers,
                       const RunPlace& place) {
  if (!headers) return {};
  const config::RunConfig config = shown_config(run, *headers, place.devices.on_gpu);
  return plan::memory_advice(headers->arch, config, place.devices, headers->stored,
                             headers->blocks);
}

/// What is left of a checkpoint would keep a full disk full. Ranks write parts of a divided one, so
/// none of them knows when all have stopped. Those of another machine may still write.
class UnfinishedCheckpoints {
 public:
  UnfinishedCheckpoints(const Run& run, const launch::LaunchPlan& plan)
      : directory_(std::filesystem::path(run.loaded.config.output.dir) / "checkpoints"),
        is_alone_(plan.nnodes == 1) {}
  ~UnfinishedCheckpoints() {
    if (is_alone_) remove_entries(directory_, kUnfinishedPrefix);
  }
  UnfinishedCheckpoints(const UnfinishedCheckpoints&) = delete;
  UnfinishedCheckpoints& operator=(const UnfinishedCheckpoints&) = delete;

 private:
  std::filesystem::path directory_;
  bool is_alone_;
};

int run_launcher(const TrainOptions& options, const launch::Environment& env,
                 config::LoadedConfig loaded) {
  const launch::Machine machine = launch::this_machine(has_cuda_kernels());
  const launch::LaunchPlan plan =
      launch::make_plan(launch_request(options, loaded.config, env), machine);
  find_data(loaded, /*quiet=*/false);
  locate_adapter(loaded, /*quiet=*/false);
  locate_reference(loaded, /*quiet=*/false);
  require_files_of_run(loaded, options);
  warn_of_files_in_both(loaded.config.data);
  const auto model_path = locate_model(loaded, options, /*quiet=*/false);
  const config::RunConfig asked = loaded.config;
  const std::optional<ModelHeaders> headers =
      options.dry_run ? read_headers(model_path, asked) : headers_if_readable(model_path, asked);
  RunPlace place =
      place_here(asked, plan.world_size(), plan.local_world_size, plan.device, options.gpus);
  const auto teacher = locate_teacher(loaded, options, /*quiet=*/false, place);
  std::string images;
  if (headers) images = plan_images_of_data(asked, model_path, headers->arch, place.devices);
  Run run = resolve_run(std::move(loaded), model_path, headers ? &*headers : nullptr,
                        options.config, place);
  run.teacher = teacher;
  if (!images.empty()) {
    run.loaded.notes.push_back(images);
    run.images_of_bin = to_text(place.devices.images);
  }
  const bool on_gpu = plan.device == "cuda";
  if (options.dry_run) {
    require_weights(asked.model.name, model_path);
    require_free_directory(options, run);
    print_dry_run(options, asked, run, *headers, on_gpu, launch::describe(plan));
    return static_cast<int>(ExitCode::kDone);
  }
  check_tuning_of(run, headers);
  require_free_directory(options, run);
  warn_and_announce(asked, run, headers, on_gpu);
  const launch::RunLock lock(run.loaded.config.output.dir, plan.node_rank);
  std::optional<ReportAtEnd> report;
  if (plan.node_rank == 0) report.emplace(run.loaded.config.output.dir);
  log::info("{}", launch::describe(plan));
  log::info("run directory: {}", run.loaded.config.output.dir);
  const launch::SuperviseOptions workers{
      .plan = plan,
      .environment = env,
      .command = worker_command(options, run, plan.workers_device, /*is_restart=*/false),
      .restart_command = worker_command(options, run, plan.workers_device, /*is_restart=*/true),
      .run_dir = run.loaded.config.output.dir,
      .max_restarts = options.max_restarts,
      .stall_s = stall_report_s(parse_duration_s(run.loaded.config.parallel.stall_after).value(),
                                parse_duration_s(run.loaded.config.parallel.timeout).value()),
      .grace_s = launch::grace_from_environment(env, launch::SuperviseOptions{}.grace_s),
      .memory_fix = [&] { return memory_fix(run, headers, place); },
      .start_smaller = [&] { return start_smaller(options, run, asked.train, plan); }};
  const UnfinishedCheckpoints removed_at_end(run, plan);
  if (plan.node_rank != 0) return launch::supervise(workers).exit_code;
  return with_end_event(run.loaded.config, [&] {
    return TrainEnd{launch::supervise(workers), {}};
  });
}

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
  config::LoadedConfig loaded = foreign::load_config(options.config, options.overrides);
  const config::Places places = loaded.places;
  return config::with_places(places, [&] {
    return external ? run_worker(options, *external, env, std::move(loaded))
                    : run_launcher(options, env, std::move(loaded));
  });
}

}  // namespace sftrun::app
