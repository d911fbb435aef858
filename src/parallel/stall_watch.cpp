#include "stall_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>

#include "rendezvous.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/core/warnings.h"

namespace sftrun::parallel {
namespace {

using std::chrono::steady_clock;

constexpr double kFewestBeats = 4;  // heartbeats until a report
constexpr int64_t kBeatsApart = 3;  // between the two looks at a rank's heartbeat

steady_clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(seconds));
}

std::string name_store_host(const Identity& identity) {
  if (hosts_store(0)) return "rank 0 sends";
  return fmt::format("torchrun at {}:{} sends", identity.master_addr, identity.master_port);
}

std::string state_key(int rank) {
  return fmt::format("doing/{}", rank);
}
std::string stack_key(int rank) {
  return fmt::format("show_stack/{}", rank);
}

std::string text_at(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

void put(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

}  // namespace

/// What a rank writes into the store: its heartbeats and what it does.
struct StallWatch::Published {
  int64_t beats = -1;  // -1: none yet
  ActivityState state;

  std::string pack() const {
    return nlohmann::json{beats, static_cast<int>(state.work), state.waits_in, state.step,
                          state.quiet_s}
        .dump();
  }
  static Published read(c10d::Store& store, int rank) {
    if (!store.check({state_key(rank)})) return {};
    const auto json = nlohmann::json::parse(text_at(store, state_key(rank)), nullptr, false);
    if (!json.is_array() || json.size() != 5) return {};
    const int work = std::clamp(json[1].get<int>(), 0, static_cast<int>(kNumWorks) - 1);
    return {.beats = json[0].get<int64_t>(),
            .state = {.work = static_cast<Work>(work),
                      .waits_in = json[2].get<std::string>(),
                      .step = json[3].get<int64_t>(),
                      .quiet_s = json[4].get<double>()}};
  }
};

StallWatch::StallWatch(const Identity& identity, const ConnectOptions& options,
                       const Activity& activity)
    : identity_(identity),
      stall_s_(stall_report_s(options.stall_s, options.timeout_s)),
      beat_s_(std::min(options.beat_s, stall_s_ / kFewestBeats)),
      answer_s_(std::min(options.answer_s, stall_s_)),
      activity_(activity),
      store_(another_connection(identity, answer_s_)),
      reports_(stall_s_),
      silent_host_(stall_s_) {
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

void StallWatch::run() {
  while (!ends_within(beat_s_)) {
    const ActivityState own = activity_.read();
    try {
      if (!store_ && may_connect_again(own)) store_ = another_connection(identity_, answer_s_);
      if (store_) {
        exchange(own);
        continue;
      }
    } catch (const std::exception&) {
      store_.reset();  // an answer that comes late would be taken for another question's
      waits_done_when_lost_ = own.waits_done;
    }
    report_silent_host(activity_.read());
  }
}

void StallWatch::report_silent_host(const ActivityState& own) {
  if (own.waits_in.empty()) return silent_host_.reset();
  if (hosts_store(identity_.rank) || !silent_host_.is_due(own.quiet_s)) return;
  log::warn_of_rank(identity_.rank,
                    "no progress for {}: {} no heartbeat (stopped, or the machine is gone); "
                    "rank {} waits in {}{}",
                    format_duration(own.quiet_s), name_store_host(identity_), identity_.rank,
                    own.waits_in, own.step > 0 ? fmt::format(" (step {})", own.step) : "");
}

/// Tells the others what this rank does; when it has waited for long, asks what they do.
void StallWatch::exchange(const ActivityState& own) {
  put(*store_, state_key(identity_.rank), Published{++beats_, own}.pack());
  if (own.waits_in.empty() || own.quiet_s < stall_s_) {
    reports_.reset();
    earlier_beats_.clear();
    show_own_stack(own);
    return;
  }
  ask_others(own);
}

void StallWatch::ask_others(const ActivityState& own) {
  if (earlier_beats_.empty()) {
    for (int rank = 0; rank < identity_.world_size; ++rank)
      earlier_beats_.push_back(Published::read(*store_, rank).beats);
    looked_at_beat_ = beats_;
  }
  if (beats_ < looked_at_beat_ + kBeatsApart) return;
  const std::vector<RankView> ranks = views(own);
  earlier_beats_.clear();
  const auto waits = [](const RankView& rank) {
    return !rank.is_silent && !rank.state.waits_in.empty();
  };
  const auto lowest = std::find_if(ranks.begin(), ranks.end(), waits);
  if (lowest == ranks.end() || lowest->rank != identity_.rank) return;  // that rank reports
  const auto stall = find_stall(ranks, stall_s_);
  if (stall && reports_.is_due(own.quiet_s)) report(*stall);
}

std::vector<RankView> StallWatch::views(const ActivityState& own) {
  std::vector<RankView> ranks;
  for (int rank = 0; rank < identity_.world_size; ++rank) {
    if (rank == identity_.rank) {
      ranks.push_back({.rank = rank, .state = own});
      continue;
    }
    Published published = Published::read(*store_, rank);
    const bool is_silent = published.beats == earlier_beats_[static_cast<size_t>(rank)];
    ranks.push_back({.rank = rank, .state = std::move(published.state), .is_silent = is_silent});
  }
  return ranks;
}

void StallWatch::report(const Stall& stall) {
  log::warn_of_rank(identity_.rank, "no progress for {}: {}", format_duration(stall.seconds),
                    stall.text);
  for (const int rank : stall.guilty)
    put(*store_, stack_key(rank), fmt::format("{} {}", identity_.rank, beats_));
}

/// Where another rank has named this one.
void StallWatch::show_own_stack(const ActivityState& own) {
  if (own.quiet_s < beat_s_ || !store_->check({stack_key(identity_.rank)})) return;
  std::string request = text_at(*store_, stack_key(identity_.rank));
  if (request == answered_) return;
  answered_ = std::move(request);
  std::string stack;
  for (const std::string& line : split(activity_.stack(::getpid()), '\n'))
    if (!line.empty()) stack += "\n    " + line;
  if (stack.empty()) return;
  log::warn_of_rank(identity_.rank,
                    "the other ranks wait for rank {}; its stack, innermost function first:{}",
                    identity_.rank, stack);
}

/// The store's host has taken part in something since: it answers.
bool StallWatch::may_connect_again(const ActivityState& own) const {
  return own.waits_in.empty() && own.waits_done > waits_done_when_lost_;
}

bool StallWatch::ends_within(double seconds) {
  std::unique_lock lock(mutex_);
  return ends_.wait_for(lock, to_duration(seconds), [this] { return is_ending_; });
}

}  // namespace sftrun::parallel
