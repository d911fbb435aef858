#include "sender.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "sftrun/core/clock.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/observe/run_report.h"
#include "starters.h"
#include "variables.h"

namespace sftrun::track {
namespace {

constexpr double kPollS = 1, kMaxDelayS = 60;
constexpr double kMsPerS = 1000;

std::string first_of(std::initializer_list<std::string> texts) {
  for (const std::string& text : texts)
    if (!text.empty()) return text;
  return {};
}

}  // namespace

Sender::Sender(SenderOptions options, Records& records, const config::RunConfig& config,
               const std::string& guard)
    : options_(std::move(options)), records_(records), tail_(options_.run_dir / "metrics.jsonl") {
  tracker_ = start_tracker(tracked_run(config, guard));
  if (!tracker_) return;  // which was said
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);  // the thread inherits the mask: it gets no signal
  try {
    thread_ = std::thread([this] {
      ::prctl(PR_SET_NAME, "sftrun-tracker");
      run();
    });
  } catch (const std::system_error& error) {
    log::warn("{} gets no metrics: {}", options_.row->title, error.what());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Sender::~Sender() {
  close(RunEnd::kFailed);
  join();
}

TrackedRun Sender::tracked_run(const config::RunConfig& config, const std::string& guard) {
  const config::TrackerRow& row = *options_.row;
  const config::TrackingConfig& given = config.output.tracking;
  const auto environment = [](std::string_view name) { return variable(std::string(name)); };
  return {.row = &row,
          .config = &config,
          .project = first_of({given.project, environment(row.project_variable), "sftrun"}),
          .name = first_of(
              {given.name, environment(row.name_variable), options_.run_dir.filename().string()}),
          .uri = first_of({given.uri, environment(row.uri_variable)}),
          .run_dir = options_.run_dir.string(),
          .guard = guard,
          .keep =
              [this](const nlohmann::ordered_json& record) {
                records_.set(std::string(options_.row->name), record);
              },
          .should_stop = [this] { return should_stop(); }};
}

void Sender::close(RunEnd end) {
  {
    const std::scoped_lock lock(mutex_);
    if (end_) return;
    end_ = end;
    ends_at_s_ = monotonic_seconds() + options_.end_s;
  }
  changed_.notify_all();
}

void Sender::join() {
  if (thread_.joinable()) thread_.join();
}

bool Sender::is_closed() {
  const std::scoped_lock lock(mutex_);
  return end_.has_value();
}

bool Sender::should_stop() {
  const std::scoped_lock lock(mutex_);
  if (!end_) return false;
  return monotonic_seconds() >= ends_at_s_ || (options_.should_end && options_.should_end());
}

void Sender::wait(double seconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [this] { return end_.has_value(); });
}

void Sender::run() {
  constexpr int kLastAttempts = 5;
  constexpr auto kBetweenLastAttempts = std::chrono::milliseconds(300);
  int last_attempts = 0;
  for (;;) {
    const bool is_last = is_closed();  // before the lines are read: none comes later
    try {
      if (!has_begun_) has_begun_ = begin();
      if (has_begun_) work();
      if (is_last && has_begun_ && !should_stop()) {
        tracker_->end(*end_);
        is_done_ = true;
      }
      answered();
    } catch (const MissingPackage& missing) {
      log::warn("{} gets no metrics: {}; to send them when the run has ended: {} {}",
                options_.row->title, missing.what(), options_.row->send_later,
                options_.run_dir.string());
      is_missing_ = true;
      break;
    } catch (const std::exception& error) {
      fail(split(error.what(), '\n').front());
    }
    if (is_last) {
      if (is_done_ || !has_begun_ || should_stop() || ++last_attempts == kLastAttempts) break;
      std::this_thread::sleep_for(kBetweenLastAttempts);
      continue;
    }
    wait(failures_ == 0 ? kPollS : std::min(std::ldexp(kPollS, failures_ - 1), kMaxDelayS));
  }
  if (has_begun_ && !is_done_ && !is_missing_) report_rest();
  tracker_.reset();
}

/// Whether the run trains: rank 0 has written run.json.
bool Sender::begin() {
  const std::filesystem::path file = options_.run_dir / "run.json";
  if (!leads_to_file(file)) return false;
  const observe::RunReport report = observe::read_run_report(file);
  if (report.started_at < options_.begun_at_s) return false;
  first_step_ = report.first_step;
  clock_s_ = report.started_at;
  RunBegin begin{.started_ms = static_cast<int64_t>(report.started_at * kMsPerS)};
  nlohmann::ordered_json record = records_.of(std::string(options_.row->name));
  (first_step_ > 0 ? begin.record : begin.abandoned) = std::move(record);
  tracker_->begin(std::move(begin));
  return true;
}

void Sender::work() {
  if (!is_open_) {
    position_ = tracker_->open();
    is_open_ = true;
  }
  for (;;) {
    if (waiting_.empty()) waiting_ = next_lines();
    if (waiting_.empty() || should_stop()) return;
    std::erase_if(waiting_, [&](const TimedLine& one) { return position_.has(one.line); });
    if (!waiting_.empty()) tracker_->send(waiting_);
    for (const TimedLine& one : waiting_) position_.add(one.line);
    waiting_.clear();
  }
}

/// Lines have no time: that of the beginning and how long steps took give it.
std::vector<TimedLine> Sender::next_lines() {
  std::vector<TimedLine> lines;
  for (TrackedLine& line : tail_.read()) {
    if (line.step > first_step_) clock_s_ = std::min(clock_s_ + line.seconds, unix_seconds());
    lines.push_back({std::move(line), static_cast<int64_t>(clock_s_ * kMsPerS)});
  }
  return lines;
}

/// What was sent is not known: `open` asks the tracker.
void Sender::fail(const std::string& what) {
  is_open_ = false;
  if (failures_++ > 0) return;
  failing_since_s_ = monotonic_seconds();
  if (!should_stop())
    log::warn("{} gets no metrics for now: {}; the run continues, and sends them later",
              options_.row->title, what);
}

void Sender::answered() {
  if (failures_ == 0) return;
  log::info("{}: metrics are sent again, after {}", options_.row->title,
            format_duration(monotonic_seconds() - failing_since_s_));
  failures_ = 0;
}

void Sender::report_rest() {
  log::warn("{} did not get all metrics of this run; to send them: {} {}", options_.row->title,
            options_.row->send_later, options_.run_dir.string());
}

}  // namespace sftrun::track
