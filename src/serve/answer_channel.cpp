#include "sftrun/serve/answer_channel.h"

#include <utility>

#include "sftrun/serve/http_status.h"

namespace sftrun::serve {

void AnswerChannel::send(AnswerEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  arrived_.notify_one();
}

void AnswerChannel::abandon() noexcept {
  const std::lock_guard lock(mutex_);
  is_abandoned_ = true;
  arrived_.notify_one();
}

std::optional<AnswerEvent> AnswerChannel::receive(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  if (!arrived_.wait_for(lock, most, [this] { return !events_.empty() || is_abandoned_; }))
    return std::nullopt;
  if (events_.empty()) {
    AnswerEvent failed;
    failed.error.emplace(kUnavailable,
                         "the server has run out of memory; ask for fewer or shorter answers");
    return failed;
  }
  AnswerEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

}  // namespace sftrun::serve
