#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "answer_job.h"
#include "sftrun/serve/limits.h"

namespace sftrun::serve {

/// The answers that wait for their turn, in the order of arrival, and how many are in progress: both
/// together are limited. Connections add them, and one thread takes them. Thread-safe.
class WaitingAnswers {
 public:
  explicit WaitingAnswers(const Limits& limits) : limits_(limits) {}

  /// @throws ApiError 429 if there are too many answers, 400 if these alone are, 503 after `stop`
  /// @param model that is asked
  void require_room(size_t num_answers, const ServedModel& model) const;
  /// All or none.   @throws as require_room
  void add(std::vector<std::unique_ptr<AnswerJob>> jobs);
  /// Waits for an answer.   @return whether one waits
  bool wait(std::chrono::milliseconds most);

  /// Offers the answers in the order of arrival until `takes` leaves one, which then is the first
  /// again. What is taken is in progress. Answers that nobody reads any more are dropped.
  /// @param takes moves from its argument and returns true, or leaves it and returns false
  void offer(const std::function<bool(std::unique_ptr<AnswerJob>&)>& takes);
  /// What has become of those that were taken.   @param num_tokens new ones
  void report(size_t num_active, uint64_t num_tokens);
  /// No answer is accepted from now on. Those that wait fail, and none is in progress.
  void stop(const ApiError& error);

  Load load() const;
  bool have_any_of(const ServedModel& model) const;

 private:
  void require_room_locked(size_t num_answers, const ServedModel& model) const;

  const Limits limits_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable added_;
  std::deque<std::unique_ptr<AnswerJob>> jobs_;
  size_t num_active_ = 0;
  uint64_t num_tokens_ = 0;
  bool is_stopped_ = false;
};

}  // namespace sftrun::serve
