#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <filesystem>
#include <map>

#include "commands.h"
#include "device_memory.h"
#include "disk_space.h"
#include "host_memory.h"
#include "memory_advice.h"
#include "model_division.h"
#include "rank.h"
#include "rank_report.h"
#include "rank_threads.h"
#include "reader_advice.h"
#include "report.h"
#include "run_messages.h"
#include "session.h"
#include "sftrun/core/build_id.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/log.h"
#include "sftrun/core/units.h"
#include "sftrun/export/run_result.h"
#include "sftrun/foreign/load.h"
#include "sftrun/kernels/cuda_registry.h"
#include "sftrun/launch/gpu_meter.h"
#include "sftrun/launch/launch_plan.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/model/base_form.h"
#include "sftrun/observe/run_card.h"
#include "sftrun/observe/system.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/plan/device_map.h"
#include "sftrun/plan/memory_change.h"
#include "sftrun/plan/memory_plan.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/train/resume.h"
#include "sftrun/train/run_data.h"
#include "sftrun/train/run_directory.h"
#include "sftrun/train/stop_agreement.h"
#include "sftrun/train/trainer.h"
#include "sftrun/weights/adapter_base.h"
#include "sftrun/weights/fingerprint.h"
#include "sftrun/weights/weights_summary.h"
#include "training_answers.h"
#include "weight_hashing.h"

/// One rank of a training run, from its configuration to its final adapter.
namespace sftrun::engine {
namespace fs = std::filesystem;
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

/// Threads that prepare data.
int data_threads(const config::TrainConfig& train) {
  return train.dataloader_num_workers > 0 ? static_cast<int>(train.dataloader_num_workers)
                                          : at::get_num_threads();
}

/// The values of `auto` that depend on the model's files.
void resolve_auto(config::RunConfig& config, const weights::Checkpoint& checkpoint) {
  if (config.train.objective_info().has_aux_loss) {
    config.train.router_aux_loss_coef =
        spec::aux_loss_coef(config.train.router_aux_loss_coef, checkpoint.arch().mixture);
  } else if (checkpoint.arch().mixture.aux_loss_coef.value_or(0) > 0) {
    config.train.router_aux_loss_coef = 0;
  }
  config.tuning.quant = plan::resolved_quant(config.tuning, weights::block_kinds(checkpoint));
}

/// Warns that trained weights are dequantised.
void warn_of_unpacking(const config::TuningConfig& tuning, const weights::Checkpoint& checkpoint) {
  if (tuning.trains_adapter()) return;
  const std::string packed = weights::packed_format(checkpoint);
  if (packed.empty()) return;
  log::warn(
      "the model's files are quantised ({}); trained weights start from the dequantised values",
      packed);
}

void warn_of_pissa(const config::BaseRecord& base_record) {
  if (!base_record.pissa() || base_record.form.empty()) return;
  log::warn(
      "PiSSA changes the base weights, and the rest is quantised to {} and not saved: the saved "
      "adapter fits the original model only approximately (docs/lora-variants.md)",
      base_record.form);
}

/// What is prepared before the first step.
struct PreparedRun {
  config::RunConfig config;  ///< resolved
  fs::path model_path;       ///< of config.model.name, which may be a name on a hub
  Compute compute;
  std::shared_ptr<const weights::Checkpoint> checkpoint;
  std::optional<data::TextModel> text;       ///< tokenizer and template
  std::optional<std::string> chat_template;  ///< of model.chat_template
  bool leaves_template_unused = false;       ///< on rank 0, which tells users of the result
  int64_t rendered_at_unix_s = 0;
  std::optional<fs::path> resume_from;
  StepRange profiled_steps;
  train::RunData data;
  nlohmann::ordered_json identity;
  std::string base_fingerprint;
  std::unique_ptr<ModelDivision> division;  ///< when the ranks are connected
  std::unique_ptr<model::Decoder> decoder;
  std::unique_ptr<parallel::Strategy> strategy;
  bool tries_longest_batch = false;  ///< now
  bool asks_for_batch = false;       ///< train::BatchRequest::asks_for_batch

  fs::path run_dir() const { return config.output.dir; }
};

/// PiSSA: what each stage subtracted from its base, which the result contains.
void gather_principal_parts(model::Decoder& decoder, parallel::Strategy& strategy) {
  std::map<std::string, at::Tensor> parts;
  for (const layers::Parameter& parameter : decoder.parameters().parameters()) {
    if (parameter.role != TensorRole::kLoraA && parameter.role != TensorRole::kLoraB) continue;
    const auto found = decoder.principal_parts().find(parameter.name);
    // The ranks of a stage's shards have the same ones.
    const bool is_own = found != decoder.principal_parts().end() &&
                        strategy.mesh().rank(parallel::Axis::kDpShard) == 0;
    const at::Tensor own = is_own ? found->second.flatten() : at::empty({0}, at::kFloat);
    parts[parameter.name] =
        strategy.whole(own, 0, parameter.numel).view(parameter.shape).to(at::kCPU);
  }
  decoder.set_principal_parts(std::move(parts));
}

/// Loads the decoder, divided as the strategy says, with the adapter that the run starts from. A
/// checkpoint is loaded later.   @return 0, or the exit code of a stop
int load_model(PreparedRun& run, Rank& rank) {
  model::DecoderOptions options = decoder_options(run.config, run.compute, run.checkpoint.get());
  if (run.resume_from && options.lora.pissa)
    options.pissa_from = train::principal_parts_of(*run.resume_from);
  ModelDivision& division = *run.division;
  division.apply_to(options, run.checkpoint->arch(), run.config);
  const auto load = [&](const std::function<void()>& stop_point) {
    options.stop_point = stop_point;
    run.decoder = load_decoder(run.checkpoint, options);
  };
  if (const int code = load_together(rank, division, run.compute.device, load))
    return rank.told_before_training(code);
  const int dp_shard = division.mesh().sizes().dp_shard;
  if (division.shards() != nullptr && division.shards()->sharding().trained_on_host)
    require_host_memory(rank, trained_host_bytes(*run.decoder, run.config.train, dp_shard));
  run.strategy = division.make_strategy(run.config, *run.decoder);
  if (division.mesh().sizes().pp > 1 && options.lora.pissa)
    gather_principal_parts(*run.decoder, *run.strategy);
  const std::string& start = run.config.tuning.lora.init_from;
  if (start.empty() || run.resume_from) return 0;
  const auto assign = [&](const layers::Parameter& parameter, const at::Tensor& values) {
    run.strategy->assign(parameter, values);
  };
  if (const int code =
          rank.before_training([&] { model::load_adapter_weights(*run.decoder, start, assign); }))
    return code;
  log::info("adapter initialised from {}", start);
  return 0;
}

/// Tokenises the data with the model's tokenizer and template, and divides it into batches.
/// @param saved the checkpoint's state; null: a new run
void prepare_data(PreparedRun& run, const train::TrainState* saved,
                  const train::BatchRequest& batches, Rank& rank) {
  const std::string& configured = run.config.model.chat_template;
  data::TextModel& text = run.text.emplace(text_model_of(*run.checkpoint, configured));
  if (!configured.empty()) run.chat_template = text.chat_template->source();
  text.render_defaults.now_unix_s = run.rendered_at_unix_s;
  data::warn_of_idle_template_variables(text, run.config.data.chat_template_kwargs);
  run.data = train::load_run_data(run.config, text, data_threads(run.config.train),
                                  saved != nullptr ? saved->data_position : nullptr);
  if (rank.is_main()) run.leaves_template_unused = data::leaves_template_unused(run.config, text);
  if (run.config.data.streaming) return;
  const std::string notice =
      train::fit_batches_to_data(run.config, batches, data::epoch_size(run.config, *run.data.train),
                                 static_cast<int>(run.config.parallel.axes.data_parts()),
                                 saved != nullptr ? saved->identity : nullptr);
  if (!notice.empty() && rank.is_main()) log::info("{}", notice);
}

/// Completes the identity by the weights, whose bytes were read while the model was loaded.
/// @return false if rank 0 was asked to stop meanwhile
bool add_weights(PreparedRun& run, WeightHashing& hashing, Rank& rank) {
  const auto files = hashing.get(rank.comm(), [&] { return rank.stop_exit_code() != 0; });
  if (!files) return false;
  train::NamedFingerprints named;
  for (const weights::FileHash& file : *files) named.emplace_back(file.name, file.hash);
  train::add_weights(run.identity, named);
  run.base_fingerprint = weights::fingerprint(*run.checkpoint, *files);
  return true;
}

train::TrainerInputs trainer_inputs(PreparedRun& run, Rank& rank) {
  train::TrainerInputs inputs;
  inputs.config = run.config;
  inputs.run_dir = run.run_dir();
  inputs.decoder = run.decoder.get();
  inputs.comm = &rank.comm();
  inputs.strategy = run.strategy.get();
  train::make_batches(run.data, run.config);
  inputs.batches = run.data.batches.get();
  inputs.local_world_size = rank.env().local_world_size;
  inputs.val = run.data.val_or_null();
  inputs.build = {.version = SFTRUN_VERSION, .id = build_id()};
  inputs.identity = run.identity;
  inputs.rendered_at_unix_s = run.rendered_at_unix_s;
  inputs.resume_from = run.resume_from;
  inputs.chat_template = run.chat_template;
  inputs.template_variables = data::template_variables(run.config.data);
  inputs.profiled_steps = run.profiled_steps;
  inputs.hooks.stop_exit_code = [&] { return rank.stop_exit_code(); };
  inputs.hooks.peak_memory_bytes = [&] { return peak_memory_bytes(run.compute.device); };
  inputs.hooks.on_event = [&](const train::TrainEvent& event) {
    run.tries_longest_batch = event.phase == std::string_view("fitting");
    rank.tell(event);
  };
  inputs.hooks.activity = &rank.activity();
  inputs.hooks.look_at_base = [&] { weights::require_finite(*run.checkpoint, run.model_path); };
  return inputs;
}

/// Fills in the adapter that the run trains.   @return how its base is kept; nullopt: no adapter
std::optional<config::BaseRecord> describe_adapter(const PreparedRun& run,
                                                   train::TrainerInputs& inputs) {
  if (run.decoder->options().trains != model::Trains::kLora) return std::nullopt;
  inputs.adapter = model::adapter_config_of(*run.decoder, "");
  exporting::name_base(*inputs.adapter, run.config.model, run.model_path);
  config::BaseRecord held = model::base_record(run.config, dtype_name(run.compute.dtype),
                                               *run.checkpoint, run.base_fingerprint);
  inputs.adapter->base_record = held.to_json();
  return held;
}

/// Writes the base as the run quantised it; empty: it did not, or no command does.
std::string quantize_command_of(const PreparedRun& run, const config::BaseRecord* base_record) {
  if (base_record == nullptr || !base_record->tuning.quantises_base()) return {};
  if (!unwritten_because(*base_record, *run.checkpoint).empty()) return {};
  return config::quantize_command(base_record->tuning, run.config.model.name);
}

/// What the run's directory says of the run that goes on; null: it is new, or the report is damaged.
std::optional<observe::RunReport> earlier_report(const PreparedRun& run) {
  const auto normal = [](const fs::path& path) { return absolute_path(path).lexically_normal(); };
  const bool goes_on_here = run.resume_from && normal(run.resume_from->parent_path()) ==
                                                   normal(run.run_dir() / "checkpoints");
  try {
    if (goes_on_here) return observe::read_run_report(run.run_dir() / "run.json");
  } catch (const DataError&) {
  }
  return std::nullopt;
}

/// The last evaluation of a report, if it is not after a step from which the run goes on.
nlohmann::ordered_json evaluation_until(const observe::RunReport& report, int64_t step) {
  const nlohmann::ordered_json& last = report.evaluation;
  return last.is_object() && last.value("step", step + 1) <= step ? last : nullptr;
}

/// The settings that a complete run was trained with. Those of this command may name other data.
config::RunConfig trained_config(const PreparedRun& run) {
  try {
    return foreign::load_config(run.run_dir() / "config.resolved.yaml", {}).config;
  } catch (const Error&) {  // it was removed, or edited
    return run.config;
  }
}

/// The README.md of the result.
/// @param config that the run was trained with   @param report of the run
std::string card_text(const PreparedRun& run, const config::RunConfig& config,
                      const exporting::RunResult& result, const config::BaseRecord* base_record,
                      const train::Trainer& trainer, int64_t trained_steps,
                      const observe::RunReport& report) {
  const std::string command = quantize_command_of(run, base_record);
  observe::ModelCard card = observe::card_of_run(
      config,
      {.base_model =
           result.adapter ? result.adapter->base_model_name_or_path : run.config.model.name,
       .base_record = base_record,
       .leaves_template_unused = run.leaves_template_unused,
       .quantize_command = command,
       .quantised_base = command.empty()
                             ? ""
                             : config::quantised_path(base_record->tuning, run.config.model.name),
       .trained_steps = trained_steps,
       .total_steps = trainer.total_steps(),
       .epochs = trainer.epochs_of(trained_steps),
       .dtype = report.dtype,
       .world_size = report.world_size,
       .version = SFTRUN_VERSION},
      observe::read_run_summary(run.run_dir() / "metrics.jsonl"));
  const train::BestState* best = trainer.best();
  if (run.config.train.load_best_model_at_end && best != nullptr)
    card.kept = {.step = best->step, .metric = best->metric, .value = *best->value};
  return observe::to_markdown(card);
}

/// On rank 0, after the last step and the result.
void finish(const PreparedRun& run, const exporting::RunResult& result,
            const config::BaseRecord* base_record, const train::TrainOutcome& outcome,
            int64_t total_steps, const observe::RunReport& report) {
  if (outcome.exit_code != 0 && outcome.last_step == 0) {
    log::info("stopped before the first step; nothing was lost");
    return;
  }
  if (outcome.first_step < outcome.last_step) log::info("{}", memory_line(report));
  if (outcome.exit_code != 0) {
    log::info("stopped after step {} of {} with a checkpoint; rerun the same command to resume",
              outcome.last_step, total_steps);
  } else {
    if (outcome.was_complete) log::info("this run was already complete: nothing was trained");
    log_result(result, base_record, *run.decoder, run.data.batches->num_bad_records(),
               run.leaves_template_unused);
  }
  train::require_parts(run.run_dir(), run.config.output.tensorboard, outcome.last_step,
                       outcome.exit_code);
}

/// Whether the largest micro-batch is the one that is tried before the first step. On a CPU the plan
/// decides, and so does not depend on it.
bool plans_longest_batch(const PreparedRun& run) {
  using enum config::LongestBatchFirst;
  const config::LongestBatchFirst wanted = run.config.train.longest_batch_first;
  return wanted == kOn || (wanted == kAuto && run.compute.device.is_cuda());
}

/// Tokens of the run's largest micro-batch, for each of its bins; 0: the data is not read yet.
double tokens_of_bin(const PreparedRun& run) {
  if (!run.data.batches) return 0;
  const int64_t bins = run.config.train.batch_size.value.value();
  return static_cast<double>(run.data.batches->micro_batch_tokens(bins, plans_longest_batch(run))) /
         static_cast<double>(bins);
}

/// The devices of the run, without their memory.
plan::RunDevices planned_devices(const PreparedRun& run, const Rank& rank) {
  return {.element_bytes = static_cast<int64_t>(c10::elementSize(run.compute.dtype)),
          .on_gpu = run.compute.device.is_cuda(),
          .world_size = rank.env().world_size,
          .local_world_size = rank.env().local_world_size,
          .threads = at::get_num_threads(),
          .tokens_of_bin = tokens_of_bin(run)};
}

/// What the fullest rank is expected to need, with the longest micro-batch.
plan::MemoryPlan memory_plan(const PreparedRun& run, const Rank& rank) {
  return plan::memory_plan(run.checkpoint->arch(), run.config, planned_devices(run, rank),
                           weights::packed_bytes(*run.checkpoint));
}

/// The same, by purpose.
observe::RankBytes planned_bytes(const PreparedRun& run, const Rank& rank) {
  const plan::MemoryPlan plan = memory_plan(run, rank);
  const auto bytes = [](int64_t value) { return static_cast<uint64_t>(value); };
  return {.base = bytes(plan.held.base),
          .trainable = bytes(plan.held.trainable),
          .gradients = bytes(plan.held.gradients),
          .optimizer = bytes(plan.held.optimizer),
          .activations_peak = bytes(plan.held.gathered + plan.step.peak())};
}

/// train.longest_batch_first, with `auto` resolved.
bool tries_longest_batch(const PreparedRun& run, const Rank& rank) {
  using enum config::LongestBatchFirst;
  const config::LongestBatchFirst wanted = run.config.train.longest_batch_first;
  if (wanted != kAuto || run.compute.device.is_cuda()) return wanted != kOff;
  const plan::MemoryPlan plan = memory_plan(run, rank);
  const uint64_t memory = device_memory_bytes(run.compute.device, rank.env().local_world_size);
  return static_cast<uint64_t>(plan.peak()) > memory / 2;
}

/// Answers for the validation prompts; nullptr: the run wants none.
std::unique_ptr<TrainingAnswers> training_answers(PreparedRun& run, Rank& rank) {
  if (!run.config.train.predict_with_generate || run.data.val_or_null() == nullptr) return nullptr;
  return std::make_unique<TrainingAnswers>(
      TrainingAnswers::Inputs{.config = run.config.train,
                              .text = *run.text,
                              .val = *run.data.val_or_null(),
                              .decoder = *run.decoder,
                              .groups = run.division->groups(),
                              .strategy = *run.strategy,
                              .shards_weights = run.config.parallel.axes.shards_weights(),
                              .rank = rank});
}

/// Commands for the events of training; the front end starts those for its end.
launch::EventCommandOptions event_commands(const config::RunConfig& config, const Rank& rank) {
  return {.command = rank.is_main() ? config.callbacks.command : "",
          .events = config.callbacks.events,
          .timeout_s = parse_duration_s(config.callbacks.timeout).value(),
          .run_dir = config.output.dir};
}

/// What run.json says of the evaluations. The last one may be of an earlier part of the run.
void describe_evaluations(const train::Trainer& trainer, observe::RunReport& report) {
  if (!trainer.last_evaluation().is_null()) report.evaluation = trainer.last_evaluation();
  if (const train::BestState* best = trainer.best())
    report.best = {{"metric", best->metric}, {"value", *best->value}, {"step", best->step}};
}

/// Writes the result, on rank 0: the best model or the last one. The other ranks call it too if they
/// have parts of the parameters. A stop interrupts it between two tensors: the same command writes it
/// from the last checkpoint.
/// @return 0, or the exit code of a stop
int write_result(PreparedRun& run, Rank& rank, train::Trainer& trainer,
                 const exporting::RunResult& result, const std::function<std::string()>& card,
                 int64_t last_step) {
  parallel::Communicator alone;
  train::StopAgreement stop(run.strategy->divides_parameters() ? rank.comm() : alone,
                            [&] { return rank.stop_exit_code(); });
  try {
    const Interruptible scope(launch::stop_requested);
    trainer.load_best();
  } catch (const Interrupted&) {  // perhaps on this rank alone
  }
  if (stop.next() != 0) return stop.agreed();
  auto tensors = exporting::result_tensors(
      result, *run.decoder,
      [&](const layers::Parameter& parameter) { return run.strategy->master_of(parameter); });
  for (weights::TensorToWrite& tensor : tensors) {
    tensor.produce = [&stop, produce = std::move(tensor.produce)](void* destination) {
      if (stop.next() != 0) throw Interrupted();
      produce(destination);
    };
  }
  try {
    if (rank.is_main()) {
      exporting::export_result(
          result, tensors, card(),
          train::CheckpointStore(run.run_dir() / "checkpoints").path_of(last_step));
    } else {
      result.adapter ? weights::produce_without_file(tensors)
                     : weights::produce_shards_without_files(tensors);
    }
  } catch (const Interrupted&) {
  }
  return stop.agreed();
}

/// Trains, and writes run.json before and after, and the result.
int train_and_export(PreparedRun& run, Rank& rank) {
  const int world_size = rank.env().world_size;
  const at::Device device = run.compute.device;
  std::optional<launch::GpuMeter> meter;
  if (device.is_cuda()) meter.emplace(kernels::cuda_kernels().card_bus_id(device));
  train::TrainerInputs inputs = trainer_inputs(run, rank);
  inputs.longest_batch_first = tries_longest_batch(run, rank);
  inputs.hooks.gpu_utilization = [&] {
    return meter ? meter->utilization_percent() : std::nullopt;
  };
  inputs.hooks.memory_used_bytes = [&] {
    if (!device.is_cuda()) return observe::process_memory().resident_bytes;
    return (meter ? meter->used_bytes() : std::nullopt)
        .value_or(tensor_memory(device).allocated_bytes);
  };
  observe::CpuMeter cpu_meter;
  inputs.hooks.cpu_utilization = [&] { return cpu_meter.utilization_percent(); };
  const std::unique_ptr<TrainingAnswers> answers = training_answers(run, rank);
  if (answers) {
    inputs.hooks.answer_validation = [&](int64_t step, double allowed_s) {
      return answers->evaluate(step, allowed_s);
    };
  }
  rank.start_commands(event_commands(run.config, rank));
  inputs.hooks.on_run_event = [&](const train::RunEvent& event) {
    rank.commands().tell({event.name, event.step, event.details});
  };
  const std::optional<config::BaseRecord> base_record = describe_adapter(run, inputs);
  const config::BaseRecord* held = base_record ? &*base_record : nullptr;
  if (held != nullptr && rank.is_main()) warn_of_pissa(*held);
  const exporting::RunResult result{
      run.run_dir(),     inputs.adapter,    *run.checkpoint,          run.model_path,
      run.compute.dtype, run.chat_template, inputs.template_variables};
  // They take space that the run may have.
  if (rank.is_main()) train::CheckpointStore(run.run_dir() / "checkpoints").remove_leftovers();
  if (rank.is_main()) require_disk_space(result, *run.decoder, run.config.train);
  reset_tensor_peak(device);
  const uint64_t static_bytes =
      tensor_memory(device).allocated_bytes + run.strategy->stored_bytes().unallocated;
  const int64_t bins_in_epoch = run.data.batches->bins_in_epoch();
  std::optional<train::Trainer> created;  // by reading a checkpoint's tensors, if it resumes
  if (const int code = rank.before_training([&] { created.emplace(std::move(inputs)); }))
    return code;
  train::Trainer& trainer = *created;
  if (answers) answers->rehearse();
  const int64_t total_steps = trainer.total_steps();
  const std::optional<observe::RunReport> earlier = earlier_report(run);
  // What the directory says of a complete run stays: this command may have other settings and data.
  const bool trains = !trainer.is_complete();
  const bool keeps_statements = !trains && earlier;
  if (rank.is_main()) {
    if (!keeps_statements)
      write_file_atomically(run.run_dir() / "config.resolved.yaml", config::to_yaml(run.config));
    log_start(run.config, *run.decoder, run.compute, held,
              {.total_steps = total_steps,
               .num_evaluations = trainer.num_evaluations(),
               .bins_in_epoch = bins_in_epoch,
               .learns_nothing = trainer.learns_nothing(),
               .asks_for_batch = run.asks_for_batch});
  }
  observe::RunReport report = report_of_run(
      {run.config, run.compute, run.model_path, run.base_fingerprint, held, run.data.fingerprint,
       run.identity, rank.comm().backend(), run.strategy->name(), world_size});
  report.planned = planned_bytes(run, rank);
  report.builds = train::to_json(trainer.builds());
  if (earlier) report.evaluation = evaluation_until(*earlier, trainer.step());
  if (keeps_statements) report = *earlier;
  const auto write_report = [&](const std::string& status) {
    report.status = status;
    auto ranks = gather_rank_reports(
        rank.comm(),
        rank_bytes(run.decoder->base_bytes(), run.strategy->stored_bytes(),
                   trainer.optimizer_bytes(), tensor_memory(device).peak_bytes, static_bytes),
        run.decoder->file_bytes());
    if (!keeps_statements) report.ranks = std::move(ranks);
    if (rank.is_main()) observe::write_run_report(run.run_dir() / "run.json", report);
  };
  const bool works = rank.of_main(trains || !result.exists() ? 1 : 0) != 0;
  if (works) {
    report.started_at = unix_seconds();
    write_report("running");
  }
  train::TrainOutcome outcome = trainer.run();
  bool is_wanted = outcome.exit_code == 0 && !(outcome.was_complete && result.exists());
  is_wanted = rank.of_main(is_wanted ? 1 : 0) != 0;  // it writes
  rank.activity().set_work(Work::kExporting);
  if (is_wanted && (rank.is_main() || run.strategy->divides_parameters())) {
    const auto text = [&] {
      return card_text(run, keeps_statements ? trained_config(run) : run.config, result, held,
                       trainer, outcome.last_step, report);
    };
    outcome.exit_code = write_result(run, rank, trainer, result, text, outcome.last_step);
  }
  if (is_wanted) rank.comm().barrier("result");  // it may take long
  if (is_wanted) outcome.exit_code = rank.of_main(outcome.exit_code);
  if (!keeps_statements) report.first_step = outcome.first_step;
  if (works) report.finished_at = unix_seconds();
  report.last_step = outcome.last_step;
  report.error.clear();
  describe_evaluations(trainer, report);
  write_report(status_of_exit_code(outcome.exit_code));
  rank.comm().leave();
  if (rank.is_main()) finish(run, result, held, outcome, total_steps, report);
  if (rank.is_main() && !run.config.callbacks.command.empty())
    rank.tell(launch::Status{
        .phase = launch::Phase::kCommands, .step = outcome.last_step, .total_steps = total_steps});
  rank.commands().finish();
  return outcome.exit_code;
}

/// @param run with configuration and path of the model
int prepare_and_train(const app::WorkerRequest& request, PreparedRun& run, Rank& rank) {
  config::RunConfig& config = run.config;
  run.compute = choose_compute(request.device, config.model.dtype, rank.gpu());
  config.model.dtype = dtype_choice(run.compute.dtype);
  if (!rank.meet_others(config.parallel, run.compute.device)) return rank.stop_exit_code();
  run.division = std::make_unique<ModelDivision>(rank.comm(), config, run.compute.device);

  rank.tell("loading");
  run.checkpoint = weights::Checkpoint::open(run.model_path);
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
  run.rendered_at_unix_s =
      train::rendering_time(state, static_cast<int64_t>(unix_seconds()), rank.comm());
  const train::BatchRequest batches = batch_request(request);
  run.asks_for_batch = batches.asks_for_batch();
  const auto tokenize = [&] { prepare_data(run, state, batches, rank); };
  if (const int code = rank.before_training(tokenize)) return code;
  run.identity =
      train::identity_of(config, train::model_identity(*run.checkpoint, *run.text),
                         run.data.fingerprint, run.data.val_fingerprint(), run.data.parts);
  train::require_same_on_all_ranks(run.identity, config, rank.comm());
  if (run.resume_from) {
    train::require_resumable(*run.resume_from, *saved, run.identity, resume);
    train::require_length(*run.resume_from, *saved, config, run.data.train_or_null(), resume);
  }

  rank.tell("loading");
  if (const int code = load_model(run, rank)) return code;
  const bool knows_weights = add_weights(run, hashing, rank);
  if (const int code = rank.stop_before_training()) return code;
  SFTRUN_CHECK(knows_weights);  // false only if rank 0 was stopped, which stops all ranks
  if (run.resume_from) {
    train::require_resumable(*run.resume_from, *saved, run.identity, resume);
    log::info("resuming from {}", run.resume_from->string());
  }
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
                                                 weights::packed_bytes(*run.checkpoint));
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
    const Failure failure = report_failure(failure_context(request));
    rank.abandon(failure.text);
    return failure.code;
  }
}

}  // namespace sftrun::engine
