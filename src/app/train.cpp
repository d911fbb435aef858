#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "data_source_finder.h"
#include "engine_location.h"
#include "model_source.h"
#include "planned_images.h"
#include "run_check.h"
#include "run_forecast.h"
#include "run_resolution.h"
#include "sftrun/config/best_metric.h"
#include "sftrun/config/preference_warnings.h"
#include "sftrun/config/setting_differences.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/stall.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/core/verbosity.h"
#include "sftrun/data/small_data.h"
#include "sftrun/data/text_model.h"
#include "sftrun/foreign/load.h"
#include "sftrun/hub/repo_name.h"
#include "sftrun/launch/error_file.h"
#include "sftrun/launch/event_commands.h"
#include "sftrun/launch/gpu.h"
#include "sftrun/launch/run_lock.h"
#include "sftrun/launch/scheduler_env.h"
#include "sftrun/launch/stop_signals.h"
#include "sftrun/launch/supervisor.h"
#include "sftrun/observe/foreign_results.h"
#include "sftrun/observe/html_report.h"
#include "sftrun/observe/metrics.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/observe/run_summary.h"
#include "sftrun/observe/system.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/plan/lora_plan.h"
#include "sftrun/plan/memory_change.h"
#include "sftrun/plan/stages.h"
#include "teacher_source.h"

namespace sftrun::app {
namespace {

using Json = nlohmann::ordered_json;

void list_changes(const Json& before, const Json& after, const std::string& prefix,
                  std::vector<std::string>& changes) {
  for (const auto& [key, value] : after.items()) {
    const std::string name = prefix.empty() ? key : fmt::format("{}.{}", prefix, key);
    const Json old = before.is_object() && before.contains(key) ? before[key] : Json();
    if (value.is_object()) {
      list_changes(old, value, name, changes);
    } else if (value != old) {
      changes.push_back(fmt::format(
          "{} = {}", name, excerpt(value.is_string() ? value.get<std::string>() : value.dump())));
    }
  }
}

/// The configuration as other commands name it after --config: its file and what changes it.
std::string words_of_settings(const TrainOptions& options) {
  std::string words = shell_word(options.config.string());
  for (const std::string& change : options.overrides) words += " " + shell_word(change);
  return words;
}

/// Before a model is downloaded.
void require_files_of_run(const config::LoadedConfig& loaded, const TrainOptions& options) {
  config::require_files(loaded);
  data::require_chat_template(loaded);
  require_teacher(loaded, words_of_settings(options));
}

/// Replaces init_from by the path of the adapter.
void locate_adapter(config::LoadedConfig& loaded, bool quiet) {
  constexpr const char* kKey = "tuning.lora.init_from";
  std::string& adapter = loaded.config.tuning.lora.init_from;
  if (adapter.empty()) return;
  adapter = find_adapter({.name = adapter,
                          .where = loaded.place_of(kKey),
                          .quiet = quiet,
                          .names_model = "model.name="})
                .string();
}

/// Replaces the path of train.reference by that of the model or adapter there, which may be in a
/// run directory, and a name on the hub by the folder of the model's files.
void locate_reference(config::LoadedConfig& loaded, bool quiet) {
  config::TrainConfig& train = loaded.config.train;
  if (!train.needs_reference() || train.reference_model() != config::ReferenceModel::kPath) return;
  if (!leads_to_file(train.reference) && hub::parse_model_name(train.reference))
    train.reference = find_model({.name = train.reference,
                                  .where = loaded.place_of("train.reference"),
                                  .parts = hub::ModelParts::kAll,
                                  .quiet = quiet})
                          .path.string();
  const std::filesystem::path path = train.reference, adapter = observe::adapter_at(path);
  const bool is_adapter = leads_to_file(adapter / "adapter_config.json"),
             is_run = !is_adapter && leads_to_file(path / "model" / "config.json");
  train.reference = std::filesystem::absolute(is_adapter ? adapter
                                              : is_run   ? path / "model"
                                                         : path)
                        .lexically_normal()
                        .string();
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
                         .quiet = quiet,
                         .adapter_way = AdapterWay::kSetting};
  ModelSource source =
      options.model_path.empty() ? find_model(asked) : found_model(asked, options.model_path);
  model.name = std::move(source.name);
  model.revision = std::move(source.revision);
  return source.path;
}

/// Finds a teacher that is a model, and adds it to what is planned.
std::optional<TeacherSource> locate_teacher(const config::LoadedConfig& loaded,
                                            const TrainOptions& options, bool quiet,
                                            RunPlace& place) {
  std::optional<TeacherSource> teacher = find_teacher(
      loaded,
      {.parts = options.dry_run ? hub::ModelParts::kText : hub::ModelParts::kAll, .quiet = quiet});
  if (teacher) place.devices.teacher = teacher->use(loaded.config.train);
  return teacher;
}

/// Resolves each `auto` that does not depend on the data.
config::RunConfig shown_config(const Run& run, const ModelHeaders& headers, bool on_gpu) {
  config::RunConfig shown = run.loaded.config;
  resolve_auto(shown, headers, on_gpu);
  return shown;
}

/// If a model cannot be read, the engine reports the error.
std::optional<ModelHeaders> headers_if_readable(const std::filesystem::path& model,
                                                const config::RunConfig& config) {
  try {
    return read_headers(model, config);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<std::string> override_lines(const Run& run) {
  std::vector<std::string> lines;
  for (const config::Override& override : run.loaded.overrides) {
    lines.push_back(
        fmt::format("{} = {} (from {})", override.key, excerpt(override.value), override.source));
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
         begins("train.global_batch_size ") || begins("train.eval_batch_size ");
}

/// "plan: fsdp 2 x tensor 2 on 4 processes", with sizes that follow from others; empty: one process.
std::string plan_line(const config::Axes& axes) {
  const int64_t processes = axes.stages_in_process ? 1 : axes.devices_of_part() * axes.data_parts();
  if (processes == 1) return {};
  return fmt::format("plan: {} on {} processes", config::describe(axes), processes);
}

/// Logs the configuration and the model. The workers read the data.
/// @param asked the configuration before it was resolved
void warn(const config::RunConfig& asked, const Run& run, const ModelHeaders* headers) {
  for (const std::string& warning : run.loaded.warnings) log::warn("{}", warning);
  for (const std::string& warning : config::preference_warnings(asked)) log::warn("{}", warning);
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
  if (const std::string plan = plan_line(shown.parallel.axes); !plan.empty()) log::info("{}", plan);
}

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

void warn_and_announce(const config::RunConfig& asked, const Run& run,
                       const std::optional<ModelHeaders>& headers, bool on_gpu) {
  const config::RunConfig shown = shown_config(run, headers.value_or(ModelHeaders{}), on_gpu);
  warn(asked, run, headers ? &*headers : nullptr);
  announce(asked, run, shown);
}

bool asks_for_batch(const config::TrainConfig& train) {
  return !train.batch_size.is_auto() || !train.grad_accum.is_auto() ||
         !train.global_batch_size.is_auto();
}

/// The settings that a checkpoint was written with. null: a new run, or it cannot be read, which the
/// engine reports.
Json settings_of_checkpoint(const std::filesystem::path& checkpoint) {
  const std::filesystem::path file = checkpoint / "state.json";
  if (checkpoint.empty() || !leads_to_file(file)) return nullptr;
  const Json state = Json::parse(read_text_file(file), nullptr, /*allow_exceptions=*/false);
  return state.is_object() ? state.value(Json::json_pointer("/identity/config"), Json()) : Json();
}

/// The checkpoint from which the run would go on; empty: none.
std::filesystem::path checkpoint_to_resume(const TrainOptions& options,
                                           const std::filesystem::path& run_dir) {
  if (options.overwrite || options.resume == "never") return {};
  return options.resume == "auto" ? observe::newest_checkpoint(run_dir)
                                  : std::filesystem::path(options.resume);
}

/// Settings in which the run differs from its checkpoint. Sizes that are `auto` are those of the
/// checkpoint, and what the engine resolves is not compared.
void require_settings_of_checkpoint(const TrainOptions& options, const config::RunConfig& asked,
                                    const Run& run, const config::RunConfig& sized) {
  const auto checkpoint = checkpoint_to_resume(options, sized.output.dir);
  Json was = settings_of_checkpoint(checkpoint), is = config::identity_settings(sized);
  if (!was.is_object()) return;
  const auto skip = [&](const char* key) { was.erase(key), is.erase(key); };
  if (run.batches.steps_are_auto) skip("train.global_batch_size");
  if (asked.data.bin_tokens.is_auto()) skip("data.bin_tokens");
  if (is["train.router_aux_loss_coef"].is_null()) skip("train.router_aux_loss_coef");
  if (sized.tuning.quant == config::Quant::kAuto) skip("tuning.quant");
  const auto differences = config::setting_differences(was, is, /*may_change_length=*/true);
  if (differences.empty()) return;
  throw ConfigError("the run differs from the checkpoint: " + join(differences, "; "),
                    checkpoint.string(),
                    fmt::format("to resume, {}; {}", config::restore_settings(differences),
                                config::kStartNewRun));
}

/// YAML; everything that is not configuration is in comments.
void print_dry_run(const TrainOptions& options, const config::RunConfig& asked, const Run& run,
                   const ModelHeaders& headers, bool on_gpu, const std::string& launch) {
  config::RunConfig shown = shown_config(run, headers, on_gpu);
  const RunCheck found =
      check_run(shown, run.model_path, headers, sizes_follow_data(shown, run.batches));
  const Forecast steps = forecast(shown, found.train, run.batches);
  config::RunConfig sized = shown;
  sized.train = steps.sizes;  // numbers, also where they are estimates
  apply_sizes(steps, shown);
  warn(asked, run, &headers);
  if (asks_for_batch(asked.train)) {
    const auto large =
        data::large_batch_warning(shown, steps.sizes, steps.bins_in_epoch, steps.is_exact);
    if (large) log::warn("{}", *large);
  }
  require_settings_of_checkpoint(options, asked, run, sized);
  if (steps.bin_tokens > 0) sized.data.bin_tokens.value = steps.bin_tokens;
  const auto few = data::few_steps_warning(sized, steps.steps, sized.train.learning_rate == 0.0);
  if (few && steps.is_exact) log::warn("{}", *few);
  if (const auto waiting = plan::waiting_stages_warning(sized)) log::warn("{}", *waiting);
  if (const auto idle = config::early_stopping_warning(shown.train, steps.steps, steps.evaluations))
    log::warn("{}", *idle);
  for (const std::string& line : override_lines(run)) fmt::print("# override: {}\n", line);
  for (const std::string& line : run.loaded.notes) fmt::print("# {}\n", line);
  std::vector<std::string> resolved = resolved_values(asked, shown);
  if (!steps.is_exact)
    std::erase_if(resolved, [&](const std::string& one) { return follows_from_data(run, one); });
  for (const std::string& line : resolved) fmt::print("# resolved: {}\n", line);
  for (const std::string& line : split(launch, '\n')) fmt::print("# launch: {}\n", line);
  if (const std::string plan = plan_line(shown.parallel.axes); !plan.empty())
    fmt::print("# {}\n", plan);
  if (shown.parallel.axes.has_stages())
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
      if (!leads_to_file(run_dir_ / "metrics.jsonl")) return;
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

/// What metrics.jsonl says of a run whose rank 0 was killed, so that run.json does not say it.
void add_last_metrics(const std::filesystem::path& run_dir, launch::Event& event) {
  const std::filesystem::path file = run_dir / "metrics.jsonl";
  if (!is_plain_file(file)) return;  // before the first step
  const std::vector<std::string> lines = split(read_text_file(file), '\n');
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const auto metrics = nlohmann::ordered_json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (!metrics.is_object() || !metrics.contains("step")) continue;  // the last may be incomplete
    event.step = std::max(event.step, metrics["step"].get<int64_t>());
    if (!observe::is_evaluation_line(metrics)) continue;
    event.details["evaluation"] = metrics;
    return;
  }
}

/// How a training has ended.
struct TrainEnd : launch::SuperviseEnd {
  std::string error;  ///< as the terminal had it; empty: it has not failed, or that is not known

  bool has_failed() const {
    const auto is = [this](ExitCode code) { return exit_code == static_cast<int>(code); };
    return !is(ExitCode::kDone) && !is(ExitCode::kStopped) && !is(ExitCode::kInterrupted);
  }
  std::string status() const {
    if (has_failed()) return "failed";
    return exit_code == static_cast<int>(ExitCode::kInterrupted) ? "interrupted" : "stopped";
  }
};

/// Makes run.json say how the run ended, if rank 0 was killed before it could.
/// @param begun_at_s when this process began the run: an earlier one may have left the file
void note_end(const std::filesystem::path& file, observe::RunReport& report, const TrainEnd& end,
              int64_t last_step, double begun_at_s) {
  const bool is_of_this_start = report.started_at >= begun_at_s;
  if (report.status != "running" || !is_of_this_start || end.exit_code == 0) return;
  report.status = end.status();
  report.error = end.error;
  if (!end.has_failed())
    report.error = "the processes were killed before they had written a checkpoint";
  report.last_step = last_step;
  report.finished_at = unix_seconds();
  observe::rewrite_run_report(file, report);
}

/// The event of a run's end. What run.json says is added, if the run came so far.
launch::Event end_event(const config::RunConfig& config, const TrainEnd& end, double begun_at_s) {
  const std::filesystem::path run_dir = config.output.dir;
  launch::Event event{.name = end.has_failed() ? "failure" : "end",
                      .details = {{"exit_code", end.exit_code}}};
  const std::filesystem::path report_file = run_dir / "run.json";
  try {
    observe::RunReport report = observe::read_run_report(report_file);
    event.step = report.last_step;
    event.details["status"] = end.has_failed() ? "failed" : report.status;
    event.details["evaluation"] = report.evaluation;
    event.details["best_evaluation"] = report.best;
    if (!end.has_failed() && report.status != "running") return event;
    add_last_metrics(run_dir, event);
    note_end(report_file, report, end, event.step, begun_at_s);
    event.details["status"] = end.has_failed() ? "failed" : report.status;
  } catch (const std::exception&) {  // it failed before, or these files are damaged
  }
  return event;
}

/// With --quiet the workers print no information, and a user gets the results alone.
void print_results_if_quiet(const config::RunConfig& config) {
  if (log::verbosity() != log::Verbosity::kQuiet) return;
  const std::filesystem::path run_dir = config.output.dir;
  std::vector<std::string> lines =
      observe::lines_of(observe::read_run_summary(run_dir / "metrics.jsonl"));
  const char* kind = config.tuning.trains_adapter() ? "adapter" : "model";
  lines.push_back(fmt::format("{}: {}", kind, (run_dir / kind).string()));
  std::puts(join(lines, "\n").c_str());  // a closed pipe fails no run
}

/// Without "error: ".
std::string text_of_error(std::string_view what) {
  constexpr std::string_view kError = "error: ";
  if (what.starts_with(kError)) what.remove_prefix(kError.size());
  return std::string(what);
}

/// Runs a training, then starts the user's command for its end (`callbacks`). While that runs, a stop
/// ends the command at once.
int with_end_event(const config::RunConfig& config, const std::function<TrainEnd()>& train) {
  const double begun_at_s = unix_seconds();
  const auto tell = [&](const TrainEnd& end) {
    const launch::StopSignals stop;
    launch::Event event = end_event(config, end, begun_at_s);
    if (!end.error.empty()) event.details["error"] = "error: " + end.error;
    launch::EventCommands({.command = config.callbacks.command,
                           .events = config.callbacks.events,
                           .timeout_s = parse_duration_s(config.callbacks.timeout).value(),
                           .run_dir = config.output.dir,
                           .should_end = [&] { return end.wants_at_once || stop.requested(); }})
        .tell(std::move(event));
  };
  TrainEnd end;
  try {
    end = train();
  } catch (const Error& error) {
    tell({{.exit_code = static_cast<int>(error.code())}, text_of_error(error.what())});
    throw;
  } catch (const std::exception& error) {
    tell({{.exit_code = static_cast<int>(ExitCode::kWorkerFailed)}, error.what()});
    throw;
  }
  tell(end);
  if (end.exit_code == static_cast<int>(ExitCode::kDone)) print_results_if_quiet(config);
  return end.exit_code;
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
  config::LoadedConfig loaded = foreign::load_config(options.config, options.overrides);
  const config::Places places = loaded.places;
  return config::with_places(places, [&] {
    return external ? run_worker(options, *external, env, std::move(loaded))
                    : run_launcher(options, env, std::move(loaded));
  });
}

}  // namespace sftrun::app
