#include "train_end.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "sftrun/core/clock.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/core/verbosity.h"
#include "sftrun/launch/event_commands.h"
#include "sftrun/launch/stop_signals.h"
#include "sftrun/observe/html_report.h"
#include "sftrun/observe/metrics.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/observe/run_summary.h"
#include "sftrun/track/live_trackers.h"

namespace sftrun::app {
namespace {

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

track::RunEnd end_for_trackers(const TrainEnd& end) {
  if (end.exit_code == static_cast<int>(ExitCode::kDone)) return track::RunEnd::kFinished;
  return end.has_failed() ? track::RunEnd::kFailed : track::RunEnd::kStopped;
}

/// With --quiet the workers print no information, and a user gets the results alone.
void print_results_if_quiet(const config::RunConfig& config) {
  if (log::verbosity() != log::Verbosity::kQuiet) return;
  const std::filesystem::path run_dir = config.output.dir;
  std::vector<std::string> lines = observe::lines_of(
      observe::read_run_summary(run_dir / "metrics.jsonl", config.train.objective_info().shown));
  const char* kind = config.tuning.trains_adapter() ? "adapter" : "model";
  lines.push_back(fmt::format("{}: {}", kind, (run_dir / kind).string()));
  std::puts(join(lines, "\n").c_str());  // a closed pipe fails no run
}

}  // namespace

ReportAtEnd::~ReportAtEnd() {
  try {
    if (!leads_to_file(run_dir_ / "metrics.jsonl")) return;
    observe::write_html_report(run_dir_);
    log::info("report: {}", (run_dir_ / "report.html").string());
  } catch (const std::exception& error) {
    log::warn("report.html was not written: {}", split(error.what(), '\n').front());
  }
}

std::string text_of_error(std::string_view what) {
  constexpr std::string_view kError = "error: ";
  if (what.starts_with(kError)) what.remove_prefix(kError.size());
  return std::string(what);
}

int with_end_event(const config::RunConfig& config, const std::function<TrainEnd()>& train) {
  const double begun_at_s = unix_seconds();
  std::atomic<bool> ends_at_once = false;
  track::LiveTrackers trackers(
      {.config = config, .should_end = [&] { return ends_at_once || launch::stop_requested(); }});
  const auto tell = [&](const TrainEnd& end) {
    const launch::StopSignals stop;
    ends_at_once = end.wants_at_once;
    launch::Event event = end_event(config, end, begun_at_s);
    if (!end.error.empty()) event.details["error"] = "error: " + end.error;
    launch::EventCommands({.command = config.callbacks.command,
                           .events = config.callbacks.events,
                           .timeout_s = parse_duration_s(config.callbacks.timeout).value(),
                           .run_dir = config.output.dir,
                           .should_end = [&] { return end.wants_at_once || stop.requested(); }})
        .tell(std::move(event));
    trackers.finish(end_for_trackers(end));
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

}  // namespace sftrun::app
