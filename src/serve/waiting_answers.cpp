#include "waiting_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sftrun/core/plural.h"
#include "sftrun/serve/http_status.h"

namespace sftrun::serve {

void WaitingAnswers::require_room(size_t num_answers, const ServedModel& model) const {
  const std::lock_guard lock(mutex_);
  require_room_locked(num_answers, model);
}

void WaitingAnswers::require_room_locked(size_t num_answers, const ServedModel& model) const {
  if (is_stopped_) throw ApiError(kUnavailable, "the server is stopping");
  const size_t most = limits_.batch_size + limits_.max_waiting;
  if (num_answers > most) {
    const bool is_scored = model.decoder.arch().score.has_value();
    throw ApiError(kBadRequest,
                   fmt::format("the request {} {}; at most {} are allowed at a time",
                               is_scored ? "has" : "asks for",
                               counted(num_answers, is_scored ? "text" : "answer"), most),
                   is_scored ? "" : "prompt");
  }
  if (num_active_ + jobs_.size() + num_answers <= most) return;
  throw ApiError(kTooMany,
                 fmt::format("the server is busy: {} in progress and {} waiting; retry later, or "
                             "start it with a larger --max-waiting than {}",
                             counted(num_active_, "answer"), jobs_.size(), limits_.max_waiting),
                 {}, "server_busy");
}

void WaitingAnswers::add(std::vector<std::unique_ptr<AnswerJob>> jobs) {
  if (jobs.empty()) return;
  const std::lock_guard lock(mutex_);
  require_room_locked(jobs.size(), *jobs.front()->model);
  for (std::unique_ptr<AnswerJob>& job : jobs) jobs_.push_back(std::move(job));
  added_.notify_one();
}

bool WaitingAnswers::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return added_.wait_for(lock, most, [this] { return !jobs_.empty(); });
}

void WaitingAnswers::offer(const std::function<bool(std::unique_ptr<AnswerJob>&)>& takes) {
  const std::lock_guard lock(mutex_);
  while (!jobs_.empty()) {
    if (!jobs_.front()->channel->is_cancelled()) {
      if (!takes(jobs_.front())) return;
      ++num_active_;
    }
    jobs_.pop_front();
  }
}

void WaitingAnswers::report(size_t num_active, uint64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  num_active_ = num_active;
  num_tokens_ += num_tokens;
}

void WaitingAnswers::stop(const ApiError& error) {
  const std::lock_guard lock(mutex_);
  is_stopped_ = true;
  for (const std::unique_ptr<AnswerJob>& job : jobs_) job->fail(error);
  jobs_.clear();
  num_active_ = 0;
}

Load WaitingAnswers::load() const {
  const std::lock_guard lock(mutex_);
  return {num_active_, jobs_.size(), num_tokens_};
}

bool WaitingAnswers::have_any_of(const ServedModel& model) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(jobs_, [&](const auto& job) { return job->model == &model; });
}

}  // namespace sftrun::serve
