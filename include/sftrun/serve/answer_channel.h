#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/model/token_logprobs.h"
#include "sftrun/serve/api_error.h"

namespace sftrun::serve {

struct AnswerToken {
  int32_t token = 0;
  /// Where it begins in the answer's text, in characters. A part of a character begins where the
  /// character does.
  size_t first_char = 0;
  std::optional<model::TokenLogprobs> logprobs;
};

/// What is new of one answer of a request.
struct AnswerEvent {
  size_t choice = 0;                ///< which answer
  std::string text;                 ///< complete characters
  std::vector<AnswerToken> tokens;  ///< including a stop token
  /// Of the prompt's tokens from the second on; before the first token.
  std::vector<model::TokenLogprobs> prompt_scores;
  std::vector<float> scores;      ///< [labels] of a head of scores; with `finish_reason`
  std::string finish_reason;      ///< "stop" or "length"; empty: not finished
  std::optional<ApiError> error;  ///< the request has failed
};

/// Carries the answers of one request from the thread that generates to the thread of its connection.
class AnswerChannel {
 public:
  void send(AnswerEvent event);
  /// What is unfinished fails, because there is no memory for it. This takes none itself.
  void abandon() noexcept;
  /// Waits for an event.   @return nullopt: none came in this time
  std::optional<AnswerEvent> receive(std::chrono::milliseconds most);

  /// Nobody reads the answers any more.
  void cancel() { is_cancelled_ = true; }
  bool is_cancelled() const { return is_cancelled_; }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<AnswerEvent> events_;
  bool is_abandoned_ = false;
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace sftrun::serve
