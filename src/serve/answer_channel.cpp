#include "sftrun/serve/answer_channel.h"

#include <utility>

namespace sftrun::serve {

void AnswerChannel::send(AnswerEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  arrived_.notify_one();
}

std::optional<AnswerEvent> AnswerChannel::receive(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  if (!arrived_.wait_for(lock, most, [this] { return !events_.empty(); })) return std::nullopt;
  AnswerEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

}  // namespace sftrun::serve
