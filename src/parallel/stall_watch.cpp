#include "stall_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>

#include "rendezvous.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/core/warnings.h"

namespace sftrun::parallel {
namespace {

using std::chrono::steady_clock;

steady_clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(seconds));
}

std::string name_store_host(const Identity& identity) {
  if (hosts_store(0)) return "rank 0 sends";
  return fmt::format("torchrun at {}:{} sends", identity.master_addr, identity.master_port);
}

std::string key_of(int rank) {
  return fmt::format("doing/{}", rank);
}

}  // namespace

/// The state that a rank publishes: a heartbeat counter, the collective in which it waits ("" if it
/// does not wait), and its activity.
struct StallWatch::State {
  std::string beats, waits_in, activity;

  static std::string pack(int64_t beats, const char* waits_in, const std::string& activity) {
    return fmt::format("{}|{}|{}", beats, waits_in ? waits_in : "", activity);
  }
  /// nullopt if the rank has not published a state yet.
  static std::optional<State> read(c10d::Store& store, int rank) {
    if (!store.check({key_of(rank)})) return std::nullopt;
    const std::vector<uint8_t> bytes = store.get(key_of(rank));
    const auto parts = split(std::string(bytes.begin(), bytes.end()), '|');
    if (parts.size() != 3) return std::nullopt;
    return State{std::string(parts[0]), std::string(parts[1]), std::string(parts[2])};
  }
};

StallWatch::StallWatch(const Identity& identity, const ConnectOptions& options)
    : identity_(identity),
      stall_s_(options.stall_s),
      beat_s_(options.beat_s),
      answer_s_(options.answer_s),
      store_(another_connection(identity, answer_s_)) {
  thread_ = std::thread([this] { run(); });
}

StallWatch::~StallWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ends_.notify_all();
  thread_.join();
}

void StallWatch::set_activity(const std::string& activity) {
  const std::lock_guard lock(mutex_);
  activity_ = activity;
}

void StallWatch::begin_wait(const char* what) {
  const std::lock_guard lock(mutex_);
  waits_in_ = what;
  wait_start_ = steady_clock::now();
}
void StallWatch::end_wait(bool all_came) {
  const std::lock_guard lock(mutex_);
  waits_in_ = nullptr;
  all_came_ = all_came;
}

StallWatch::Wait::Wait(StallWatch* watch, const char* what) : watch_(watch) {
  if (watch_ != nullptr) watch_->begin_wait(what);
}
StallWatch::Wait::~Wait() {
  if (watch_ != nullptr) watch_->end_wait(std::uncaught_exceptions() == 0);
}

double StallWatch::waited_s() {
  const std::lock_guard lock(mutex_);
  if (waits_in_ == nullptr) return 0;
  return std::chrono::duration<double>(steady_clock::now() - wait_start_).count();
}

std::string StallWatch::own_state() {
  const std::lock_guard lock(mutex_);
  return State::pack(++beats_, waits_in_, activity_);
}

void StallWatch::run() {
  double next_s = stall_s_;
  while (!ends_within(beat_s_)) {
    const double waited = waited_s();
    if (waited == 0) {
      next_s = stall_s_;
      earlier_beats_.clear();
    }
    try {
      if (!store_ && may_connect_again()) store_ = another_connection(identity_, answer_s_);
      if (store_) {
        exchange(waited, next_s);
        continue;
      }
    } catch (const std::exception&) {
      store_.reset();  // an answer that comes late would be taken for another question's
    }
    if (waited < next_s || hosts_store(identity_.rank)) continue;
    next_s = 2 * waited;
    const std::lock_guard lock(mutex_);
    log::warn_of_rank(identity_.rank,
                      "no progress for {}: {} no heartbeat (stopped, or the machine is gone); "
                      "rank {} waits in {} ({})",
                      format_duration(waited), name_store_host(identity_), identity_.rank,
                      waits_in_ ? waits_in_ : "a collective", activity_);
  }
}

/// Tells the others what this rank does; when it has waited for long, asks what they do.
void StallWatch::exchange(double waited, double& next_s) {
  const std::string state = own_state();
  store_->set(key_of(identity_.rank), std::vector<uint8_t>(state.begin(), state.end()));
  if (waited < next_s) return;
  if (earlier_beats_.empty()) {
    earlier_beats_ = beats_of_all();
    next_s = waited + 2.5 * beat_s_;
    return;
  }
  const std::string others = describe_others();
  next_s = 2 * waited;
  earlier_beats_.clear();
  if (!others.empty() && waited_s() >= waited)  // still the same wait
    log::warn_of_rank(identity_.rank, "no progress for {}: {}", format_duration(waited), others);
}

/// The store's host has just taken part in something: it answers.
bool StallWatch::may_connect_again() {
  const std::lock_guard lock(mutex_);
  return all_came_ && waits_in_ == nullptr;
}

bool StallWatch::ends_within(double seconds) {
  std::unique_lock lock(mutex_);
  return ends_.wait_for(lock, to_duration(seconds), [this] { return is_ending_; });
}

std::vector<std::string> StallWatch::beats_of_all() {
  std::vector<std::string> beats;
  for (int rank = 0; rank < identity_.world_size; ++rank) {
    const auto state = State::read(*store_, rank);
    beats.push_back(state ? state->beats : "");
  }
  return beats;
}

/// @return "" if a lower rank waits, too: that rank writes the log line
std::string StallWatch::describe_others() {
  std::vector<int> silent, waiting;
  std::map<std::string, std::vector<int>> busy;
  for (int rank = 0; rank < identity_.world_size; ++rank) {
    const auto state = State::read(*store_, rank);
    const bool is_here = rank == identity_.rank;
    if (!is_here && (!state || state->beats == earlier_beats_[static_cast<size_t>(rank)]))
      silent.push_back(rank);
    else if (is_here || !state->waits_in.empty())
      waiting.push_back(rank);
    else
      busy[state->activity].push_back(rank);
  }
  if (waiting.front() != identity_.rank) return "";
  std::string text;
  if (!silent.empty()) {
    text += fmt::format("{} {} no heartbeat (stopped, or the machine is gone); ",
                        name_ranks(silent), silent.size() == 1 ? "sends" : "send");
  }
  for (const auto& [activity, ranks] : busy)
    text += fmt::format("{} {} at: {}; ", name_ranks(ranks), ranks.size() == 1 ? "is" : "are",
                        activity);
  const std::lock_guard lock(mutex_);
  return text + fmt::format("{} {} in {} ({})", name_ranks(waiting),
                            waiting.size() == 1 ? "waits" : "wait",
                            waits_in_ ? waits_in_ : "a collective", activity_);
}

}  // namespace sftrun::parallel
