#include <c10/util/Exception.h>

#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "commands.h"
#include "device_memory.h"
#include "memory_advice.h"
#include "prepared_run.h"
#include "rank.h"
#include "rank_threads.h"
#include "reference_logps.h"
#include "run_memory.h"
#include "session.h"
#include "sftrun/config/reference_model.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/log.h"
#include "sftrun/launch/launch_plan.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/model/base_form.h"
#include "sftrun/plan/device_map.h"
#include "sftrun/plan/lora_plan.h"
#include "sftrun/plan/memory_change.h"
#include "sftrun/train/resume.h"
#include "sftrun/weights/adapter_base.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/embedding_files.h"
#include "sftrun/weights/projectors.h"
#include "sftrun/weights/score_head.h"
#include "sftrun/weights/weights_summary.h"
#include "teacher.h"
#include "training.h"
#include "training_answers.h"
#include "weight_hashing.h"

/// One rank of a training run, from its configuration to its final adapter.
namespace sftrun::engine {
namespace {

train::ResumeOptions resume_options(const app::WorkerRequest& request) {
  return {.from = request.resume,
          .overwrite = request.overwrite,
          .allow_changed_data = request.allow_changed_data,
          .allow_backend_change = request.allow_backend_change,
          .allow_changed_length = request.allow_changed_length};
}

train::BatchRequest batch_request(const app::WorkerRequest& request) {
  return {.steps_are_auto = request.steps_are_auto,
          .batch_size = request.batch_size,
          .max_micro_batch = request.max_micro_batch,
          .eval_follows = request.eval_batch_size_is_auto};
}

/// The configuration with its axes. All stages of a device map are ranks of one process.
config::RunConfig config_of(const app::WorkerRequest& request, const Rank& rank) {
  config::RunConfig config = request.config;
  const bool has_one_process = config.parallel.strategy == config::Strategy::kDeviceMap;
  const int world_size = has_one_process ? 1 : rank.env().world_size;
  config::resolve_axes(config.parallel, world_size, world_size);
  return config;
}

/// The model with the projectors of the adapter that the run starts from, and those of the configuration, and with the head that the
/// objective trains.
std::shared_ptr<const weights::Checkpoint> open_model(const PreparedRun& run) {
  const config::RunConfig& config = run.config;
  std::shared_ptr<const weights::Checkpoint> model = weights::Checkpoint::open(run.model_path);
  const std::string& start = config.tuning.lora.init_from;
  spec::ArchSpec arch = model->arch();
  plan::add_projectors(arch, config,
                       start.empty() ? std::vector<FeatureProjector>()
                                     : weights::read_adapter_projectors(*model, start));
  const auto seed = static_cast<uint64_t>(config.train.seed);
  model = weights::with_projectors(std::move(model), arch.projectors, seed);
  if (auto score = plan::score_of_run(model->arch(), config))
    model = weights::with_score(std::move(model), std::move(*score), seed);
  if (plan::has_no_head(config)) model = weights::without_head(std::move(model));
  return model;
}

/// @param run with configuration and path of the model
int prepare_and_train(const app::WorkerRequest& request, PreparedRun& run, Rank& rank) {
  config::RunConfig& config = run.config;
  run.compute = choose_compute(request.device, config.model.dtype, rank.gpu());
  config.model.dtype = dtype_choice(run.compute.dtype);
  if (!rank.connect(config.parallel, run.compute.device))
    return rank.told_before_training(rank.stop_exit_code());
  run.division = std::make_unique<ModelDivision>(rank.comm(), config, run.compute.device);

  rank.tell("loading");
  run.checkpoint = open_model(run);
  resolve_auto(config, *run.checkpoint);
  run.division->divide_matrices(*run.checkpoint, config);  // an error before the data is tokenised
  WeightHashing hashing(run.checkpoint, rank.env());
  if (rank.is_main()) warn_of_unpacking(config.tuning, *run.checkpoint);
  const train::ResumeOptions resume = resume_options(request);
  run.profiled_steps = parse_step_range(request.profile, "--profile");
  try {
    const Interruptible scope(launch::stop_requested);
    run.resume_from = train::find_checkpoint(resume, run.run_dir(), rank.comm());
  } catch (const Interrupted&) {  // on every rank
    return rank.stop_before_training();
  }
  const std::string& start = config.tuning.lora.init_from;
  if (rank.is_main() && !start.empty() && !run.resume_from) {
    weights::require_own_base(*run.checkpoint, run.model_path, start);
    model::warn_of_another_base(start, *run.checkpoint);
  }

  rank.tell("tokenizing");
  std::optional<train::TrainState> saved;
  if (run.resume_from) saved = train::read_train_state(*run.resume_from);
  const train::TrainState* state = saved ? &*saved : nullptr;
  std::optional<int64_t> of_teacher;
  const auto read_time = [&] { of_teacher = rendering_time_of_teacher(config.train); };
  if (const int code = rank.before_training(read_time)) return code;
  run.rendered_at_unix_s = train::rendering_time(
      state, of_teacher.value_or(static_cast<int64_t>(unix_seconds())), rank.comm());
  const train::BatchRequest batches = batch_request(request);
  run.asks_for_batch = batches.asks_for_batch();
  const auto tokenize = [&] { prepare_data(run, state, batches, rank); };
  if (const int code = rank.before_training(tokenize)) return code;
  run.identity =
      train::identity_of(config, train::model_identity(*run.checkpoint, *run.text),
                         run.data.fingerprint, run.data.val_fingerprint(), run.data.parts);
  if (run.deals_by_cost) train::add_deal_by_cost(run.identity);
  if (!start.empty() && config::starts_as_reference(config))
    train::add_start(run.identity, weights::adapter_hash(start));
  train::require_same_on_all_ranks(run.identity, config, rank.comm(),
                                   rank.env().local_world_size == rank.env().world_size);
  if (const int code = rank.before_training([&] { attach_teacher(run, request.settings); }))
    return code;
  TeacherBeside teacher(run, request);
  if (const int code = teacher.identify(rank)) return code;
  if (run.resume_from) {
    train::require_resumable(*run.resume_from, *saved, run.identity, resume);
    train::require_length(*run.resume_from, *saved, config, run.data.train_or_null(), resume);
  }

  rank.tell("loading");
  const bool precomputes = config::precomputes_reference(config.train),
             has_other = config.train.reference_model() == config::ReferenceModel::kPath;
  if (precomputes && has_other)
    if (const int code = add_logps_of_other_model(run, request.device, rank)) return code;
  if (const int code = load_model(run, rank)) return code;
  if (const int code = teacher.load(rank)) return code;
  const bool knows_weights = add_weights(run, hashing, rank);
  if (const int code = rank.stop_before_training()) return code;
  SFTRUN_CHECK(knows_weights);  // false only if rank 0 was stopped, which stops all ranks
  if (run.resume_from) {
    train::require_resumable(*run.resume_from, *saved, run.identity, resume);
    log::info("resuming from {}", run.resume_from->string());
  }
  if (precomputes && !has_other)
    if (const int code = add_logps_of_own_model(run, rank)) return code;
  return train_and_export(run, rank);
}

/// What would have fitted; the general advice if no change would, or before the model's files are
/// known.
OutOfMemoryError with_advice(const std::string& message, const std::string& where,
                             const std::string& general, const PreparedRun& run, const Rank& rank) {
  if (!run.checkpoint) return OutOfMemoryError(message, where, general);
  plan::RunDevices devices = planned_devices(run, rank);
  devices.memory_bytes = device_memory_bytes(run.compute.device, rank.env().local_world_size);
  const std::string advice = plan::memory_advice(run.checkpoint->arch(), run.config, devices,
                                                 weights::packed_bytes(*run.checkpoint),
                                                 weights::packed_blocks(*run.checkpoint));
  return OutOfMemoryError(message, where, advice.empty() ? general : advice);
}

int run_rank(const app::WorkerRequest& request, Rank& rank) {
  PreparedRun run{.config = config_of(request, rank), .model_path = request.model_path};
  const auto place = [&] {
    return run.tries_longest_batch ? "the longest micro-batch, before the first step" : "";
  };
  try {
    return prepare_and_train(request, run, rank);
  } catch (const c10::OutOfMemoryError& error) {
    throw with_advice(first_line(error.what_without_backtrace()), place(),
                      training_memory_advice(run.config, memory_of(error)), run, rank);
  } catch (const std::bad_alloc&) {
    throw with_advice("out of memory", place(), training_memory_advice(run.config, Memory::kHost),
                      run, rank);
  } catch (const NoMemoryForAnswers&) {
    throw;
  } catch (const OutOfMemoryError& error) {  // while the model was loaded
    throw with_advice(error.message(), error.where(), error.fix(), run, rank);
  }
}

/// Stages of a device map; nullopt: this process is one rank.
std::optional<plan::DeviceStages> stages_of_process(const app::WorkerRequest& request,
                                                    const Rank& rank) {
  const config::RunConfig config = config_of(request, rank);
  if (!config.parallel.axes.stages_in_process) return std::nullopt;
  const auto checkpoint = weights::Checkpoint::open(request.model_path);
  return plan::device_stages(checkpoint->arch(), config.parallel);
}

int run_process(const app::WorkerRequest& request, Rank& rank) {
  configure_logging(rank.env(), request.config.output.dir);
  set_threads();
  const auto stages = stages_of_process(request, rank);
  if (!stages) return run_rank(request, rank);
  std::vector<int> gpus;
  for (const std::string& device : stages->devices) gpus.push_back(plan::gpu_of(device));
  return run_stage_threads(rank, gpus, failure_context(request),
                           [&](Rank& of_stage) { return run_rank(request, of_stage); });
}

}  // namespace

int run_worker(const app::WorkerRequest& request) {
  quiet_libtorch();
  Rank rank;
  try {
    return run_process(request, rank);
  } catch (...) {
    // Reported while the communicator is still connected: when it is destroyed the other ranks fail
    // too, and their errors must not come first.
    const Failure failure = report_failure(failure_context(request), rank);
    rank.abandon(failure.text);
    return failure.code;
  }
}

}  // namespace sftrun::engine
