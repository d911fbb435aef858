#include "rank_store.h"

#include <fmt/format.h>

#include <thread>
#include <utility>
#include <vector>

#include "c10d_errors.h"
#include "rendezvous.h"
#include "sftrun/core/error.h"

namespace sftrun::parallel {
namespace {

using Milliseconds = std::chrono::milliseconds;

// How long to wait for a rank that may have died while leaving
constexpr std::chrono::seconds kLeaving{30};

std::string key_of_calls(int rank) {
  return fmt::format("calls/{}", rank);
}

std::vector<uint8_t> to_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string to_text(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

void throw_if_failed(const std::string& failure) {
  if (!failure.empty()) throw CommError(failure, {}, "see the log of that rank");
}

}  // namespace

RankStore::RankStore(c10::intrusive_ptr<c10d::Store> keys, const Identity& identity,
                     std::string where, Activity& activity)
    : keys_(std::move(keys)),
      rank_(identity.rank),
      world_size_(identity.world_size),
      where_(std::move(where)),
      activity_(activity) {}

template <typename Body>
void RankStore::guarded(const char* what, Body&& body) {
  run_guarded(&activity_, what, where_, /*group=*/0, std::forward<Body>(body));
}

/// @return what a rank has said in `abandon`; empty: none has, and `is_closed` has become false
template <typename Body>
std::string RankStore::failure_while(Milliseconds between, Body&& is_closed) {
  while (is_closed()) {
    const std::string failure = keys_->check({kFailure}) ? to_text(keys_->get(kFailure)) : "";
    std::this_thread::sleep_for(between);
    if (!failure.empty()) return failure;
  }
  return {};
}

void RankStore::barrier(const std::string& name) {
  const std::string count = "barrier/" + name, open = count + "/open";
  std::string failure;
  guarded("barrier", [&] {
    if (keys_->add(count, 1) == world_size_) keys_->set(open, std::vector<uint8_t>{1});
    failure = failure_while(Milliseconds(5), [&] { return !keys_->check({open}); });
  });
  throw_if_failed(failure);
}

void RankStore::await_call(int rank) {
  constexpr Milliseconds kBetween{10};  // delays the first token after a rest
  const int64_t wanted = ++num_heard_[rank];
  std::string failure;
  run_guarded(/*activity=*/nullptr, "resting", where_, /*group=*/0, [&] {
    failure = failure_while(kBetween, [&] { return keys_->add(key_of_calls(rank), 0) < wanted; });
  });
  throw_if_failed(failure);
}

void RankStore::call() {
  guarded("calling", [&] { keys_->add(key_of_calls(rank_), 1); });
}

void RankStore::leave() {
  const auto left = [](int rank) { return fmt::format("left/{}", rank); };
  guarded("leaving", [&] {
    // `set` does not wait for an answer of the store, so it works even if the host is gone already.
    if (!hosts_store(rank_)) return keys_->set(left(rank_), std::vector<uint8_t>{1});
    std::vector<std::string> others;
    for (int other = 1; other < world_size_; ++other) others.push_back(left(other));
    const auto deadline = std::chrono::steady_clock::now() + kLeaving;
    while (!keys_->check(others) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(Milliseconds(5));
  });
}

void RankStore::abandon(const std::string& why) noexcept {
  try {
    std::string cause = first_line(why.c_str());
    if (cause.starts_with("error: ")) cause = cause.substr(7);
    keys_->set(kFailure, to_bytes(fmt::format("rank {} failed: {}", rank_, cause)));
  } catch (const std::exception&) {  // the store is gone; the other ranks notice that themselves
  }
}

std::string RankStore::broadcast(const std::string& name, const std::string& text) {
  std::string result;
  guarded("broadcast", [&] {
    const std::string key = "broadcast/" + name;
    if (rank_ == 0) keys_->set(key, to_bytes(text));
    result = to_text(keys_->get(key));
  });
  return result;
}

int64_t RankStore::add(const std::string& name, int64_t amount) {
  int64_t sum = 0;
  guarded("adding", [&] { sum = keys_->add("number/" + name, amount); });
  return sum;
}

}  // namespace sftrun::parallel
