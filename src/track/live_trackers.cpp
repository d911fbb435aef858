#include "sftrun/track/live_trackers.h"

#include "records.h"
#include "sender.h"
#include "sftrun/config/trackers.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/observe/run_report.h"

namespace sftrun::track {

struct LiveTrackers::State {
  State(LiveTrackerOptions given, const std::filesystem::path& run_dir)
      : options(std::move(given)), records(run_dir / "trackers.json") {}

  LiveTrackerOptions options;
  Records records;
  std::vector<std::unique_ptr<Sender>> senders;
};

LiveTrackers::LiveTrackers(LiveTrackerOptions options) {
  const std::vector<const config::TrackerRow*> rows = config::live_trackers(options.config.output);
  if (rows.empty()) return;
  const std::filesystem::path run_dir = absolute_path(options.config.output.dir).lexically_normal();
  const double now_s = unix_seconds();
  state_ = std::make_unique<State>(std::move(options), run_dir);
  for (const config::TrackerRow* row : rows)
    state_->senders.push_back(std::make_unique<Sender>(
        SenderOptions{run_dir, row, now_s, state_->options.end_s, state_->options.should_end},
        state_->records, state_->options.config, state_->options.guard));
}

LiveTrackers::~LiveTrackers() {
  finish(RunEnd::kFailed);
}

void LiveTrackers::finish(RunEnd end) {
  if (!state_) return;
  for (const auto& sender : state_->senders) sender->close(end);
  for (const auto& sender : state_->senders) sender->join();
  note_in_report();
  state_.reset();
}

/// run.json names the tracked runs.
void LiveTrackers::note_in_report() const {
  const std::filesystem::path file =
      std::filesystem::path(state_->options.config.output.dir) / "run.json";
  try {
    nlohmann::ordered_json records = state_->records.all();
    if (records.empty() || !leads_to_file(file)) return;
    observe::RunReport report = observe::read_run_report(file);
    report.trackers = std::move(records);
    observe::rewrite_run_report(file, report);
  } catch (const std::exception& error) {
    log::warn("run.json does not name the tracked runs: {}", error.what());
  }
}

}  // namespace sftrun::track
