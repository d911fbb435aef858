#include "nccl_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <utility>

#include "rank_store.h"
#include "rendezvous.h"
#include "sftrun/core/error.h"
#include "sftrun/core/stall.h"
#include "sftrun/core/units.h"

namespace sftrun::parallel {
namespace {

using WatchSeconds = std::chrono::duration<double>;

constexpr const char* kFailed = "nccl/failed";  // key: a collective of a rank has failed
constexpr const char* kOrder = "nccl/order";    // key: number of ranks on which one has

std::string key_of_report(int rank) {
  return fmt::format("nccl/calls/{}", rank);
}

nlohmann::json calls_to_json(const RankCalls& calls) {
  nlohmann::json groups = nlohmann::json::array();
  for (const GroupCalls& group : calls.groups) {
    const CallState& state = group.calls;
    groups.push_back({group.key, group.name, group.ranks, state.called, state.done, state.last,
                      state.open, state.is_reached, state.is_inside, state.is_waited});
  }
  return {calls.order, calls.group, calls.what, calls.error, calls.is_remote, groups};
}

RankCalls calls_from_json(int rank, const nlohmann::json& json) {
  RankCalls calls{.rank = rank,
                  .has_answered = true,
                  .order = json.at(0),
                  .group = json.at(1),
                  .what = json.at(2),
                  .error = json.at(3),
                  .is_remote = json.at(4),
                  .groups = {}};
  for (const nlohmann::json& group : json.at(5)) {
    CallState state{.called = group.at(3),
                    .done = group.at(4),
                    .last = group.at(5),
                    .open = group.at(6),
                    .is_reached = group.at(7),
                    .is_waited = group.at(9),
                    .is_inside = group.at(8)};
    calls.groups.push_back(
        {.key = group.at(0), .name = group.at(1), .ranks = group.at(2), .calls = std::move(state)});
  }
  return calls;
}

/// NCCL's words for "another rank is the cause".
bool is_about_another_rank(const std::string& error) {
  for (const char* words :
       {"remote process exited", "ncclRemoteError", "by peer", "communicator was aborted"})
    if (error.find(words) != std::string::npos) return true;
  return false;
}

bool is_a_timeout(const std::string& error) {
  for (const char* words : {"timed out", "timeout", "Timeout"})
    if (error.find(words) != std::string::npos) return true;
  return false;
}

std::string text_under(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

void write_under(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

}  // namespace

NcclWatch::NcclWatch(Options options)
    : options_(std::move(options)),
      store_(another_connection(options_.identity, options_.answer_s)) {
  thread_ = std::thread([this] { run(); });
}

NcclWatch::~NcclWatch() {
  stop();
  thread_.join();
}

void NcclWatch::add(Watched group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
}

void NcclWatch::stop() {
  const std::lock_guard lock(mutex_);
  is_ending_ = true;
  changed_.notify_all();
}

std::vector<NcclWatch::Watched> NcclWatch::watched() const {
  const std::lock_guard lock(mutex_);
  return groups_;
}

void NcclWatch::check() {
  if (!has_failed_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  is_taken_ = true;
  changed_.notify_all();
  std::rethrow_exception(failure_);
}

void NcclWatch::fail(const std::string& group, const char* what, const std::string& error) {
  {
    std::unique_lock lock(mutex_);
    if (!failure_ && !is_ending_) {
      thrown_ = Failed{group, what, error, is_about_another_rank(error)};
      changed_.notify_all();
      changed_.wait_for(lock, WatchSeconds(2 * options_.settle_s + options_.answer_s),
                        [this] { return failure_ != nullptr; });
    }
  }
  check();
  throw CommError(fmt::format("{} failed: {}", what, error), options_.where,
                  "another rank stopped or the network broke; see the logs of the other ranks");
}

void NcclWatch::run() {
  while (!ends_within(options_.poll_s))
    if (look()) return;
}

/// @return true if the communication has failed, and this rank knows
bool NcclWatch::look() {
  const std::optional<Failed> own = own_failure();
  bool has_another_failed = false;
  try {
    has_another_failed =
        store_ && (store_->check({kFailed}) || store_->check({RankStore::kFailure}));
  } catch (const std::exception&) {  // LibTorch's or our own time-outs decide
    store_.reset();
  }
  if (!own && !has_another_failed) return false;
  conclude(own);
  return true;
}

/// An error first; of collectives that are late, one that the device has come to.
std::optional<NcclWatch::Failed> NcclWatch::own_failure() {
  {
    const std::lock_guard lock(mutex_);
    if (thrown_) {
      Failed thrown = *thrown_;
      if (is_a_timeout(thrown.error)) thrown.error.clear();
      return thrown;
    }
  }
  std::optional<Failed> late;
  for (const Watched& group : watched()) {
    const CallState calls = group.calls->read();
    const c10d::ErrorType error = group.backend->getError();
    if (error == c10d::ErrorType::COMM_ERROR || error == c10d::ErrorType::REMOTE_ERROR) {
      const bool is_remote = error == c10d::ErrorType::REMOTE_ERROR;
      return Failed{group.key, calls.open.empty() ? calls.last : calls.open,
                    "an asynchronous error, which LibTorch has written into the log of that rank",
                    is_remote};
    }
    if (calls.open_s < options_.timeout_s && error != c10d::ErrorType::TIMEOUT) continue;
    if (!late || calls.is_reached) late = Failed{group.key, calls.open, "", false};
  }
  return late;
}

RankCalls NcclWatch::own_calls(const std::optional<Failed>& own) {
  RankCalls calls{.rank = options_.identity.rank};
  if (own) {
    calls.order = 1;
    calls.group = own->group;
    calls.what = own->what;
    calls.error = own->error;
    calls.is_remote = own->is_remote;
  }
  for (const Watched& group : watched())
    calls.groups.push_back({group.key, group.name, group.ranks, group.calls->read()});
  return calls;
}

/// Exchanges what the ranks have called.
std::vector<RankCalls> NcclWatch::all_calls(const RankCalls& own) {
  std::vector<RankCalls> all;
  for (int rank = 0; rank < options_.identity.world_size; ++rank)
    all.push_back(rank == own.rank ? own : RankCalls{.rank = rank, .has_answered = false});
  const auto deadline = std::chrono::steady_clock::now() + WatchSeconds(options_.settle_s);
  const auto is_missing = [](const RankCalls& rank) { return !rank.has_answered; };
  while (std::any_of(all.begin(), all.end(), is_missing)) {
    for (RankCalls& rank : all)
      if (is_missing(rank) && store_->check({key_of_report(rank.rank)}))
        rank = calls_from_json(
            rank.rank, nlohmann::json::parse(text_under(*store_, key_of_report(rank.rank))));
    if (std::chrono::steady_clock::now() > deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return all;
}

void NcclWatch::conclude(const std::optional<Failed>& own) {
  RankCalls calls = own_calls(own);
  std::exception_ptr failure;
  try {
    if (!store_) throw std::runtime_error("no store");
    const bool has_nccl_failed = own || store_->check({kFailed});
    if (own) calls.order = store_->add(kOrder, 1);
    write_under(*store_, key_of_report(calls.rank), calls_to_json(calls).dump());
    if (own) write_under(*store_, kFailed, "1");
    if (has_nccl_failed) {
      failure = describe(all_calls(calls));
    } else {
      failure = std::make_exception_ptr(
          CommError(text_under(*store_, RankStore::kFailure), {}, "see the log of that rank"));
    }
  } catch (const std::exception&) {  // without the store, what this rank knows alone
    std::vector<RankCalls> all;
    for (int rank = 0; rank < options_.identity.world_size; ++rank)
      all.push_back(rank == calls.rank ? calls : RankCalls{.rank = rank, .has_answered = false});
    failure = describe(all);
  }
  set_failure(failure);
  abort_all();
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, WatchSeconds(options_.ending_s),
                    [this] { return is_taken_ || is_ending_; });
  if (is_taken_ || is_ending_ || !options_.end_process) return;
  lock.unlock();
  options_.end_process(failure);
}

std::exception_ptr NcclWatch::describe(const std::vector<RankCalls>& ranks) const {
  const CommVerdict verdict = find_verdict(ranks);
  const RankCalls& own = ranks[static_cast<size_t>(options_.identity.rank)];
  std::string message = verdict.what + " failed: ";
  const bool is_late = std::none_of(ranks.begin(), ranks.end(),
                                    [](const RankCalls& rank) { return !rank.error.empty(); });
  if (is_late) message += fmt::format("not done within {}: ", format_duration(options_.timeout_s));
  message += verdict.text;
  std::string where = options_.where;
  if (!verdict.group.empty()) where += ", " + verdict.group;
  if (verdict.call > 0) where += fmt::format(", call {}", verdict.call);
  std::string fix = verdict.guilty.empty()
                        ? "the connection between the GPUs hangs: run sftrun doctor on all "
                          "machines, and try NCCL_P2P_DISABLE=1; NCCL_DEBUG=INFO says more"
                        : fmt::format("see the log of {}", name_ranks(verdict.guilty));
  if (is_late) fix += "; parallel.timeout sets how long ranks wait";
  const bool is_cause =
      std::find(verdict.guilty.begin(), verdict.guilty.end(), own.rank) != verdict.guilty.end();
  // The launcher takes an error of communication for a consequence of another rank's.
  if (is_cause) return std::make_exception_ptr(DeviceError(message, where, fix));
  return std::make_exception_ptr(CommError(message, where, fix));
}

void NcclWatch::set_failure(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
  has_failed_.store(true, std::memory_order_release);
  changed_.notify_all();
}

/// All at once, as the abort of a communicator may wait for another one's kernels.
void NcclWatch::abort_all() {
  std::vector<std::pair<std::shared_ptr<std::promise<void>>, std::future<void>>> aborts;
  for (const Watched& group : watched()) {
    auto done = std::make_shared<std::promise<void>>();
    aborts.emplace_back(done, done->get_future());
    std::thread([backend = group.backend, done] {
      try {
        backend->abort();
      } catch (const std::exception&) {  // the device is already gone
      }
      done->set_value();
    }).detach();
  }
  const auto deadline = std::chrono::steady_clock::now() + WatchSeconds(options_.abort_s);
  for (auto& [promise, done] : aborts) done.wait_until(deadline);
}

bool NcclWatch::ends_within(double seconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, WatchSeconds(seconds),
                    [this] { return is_ending_ || thrown_.has_value(); });
  return is_ending_;
}

}  // namespace sftrun::parallel
