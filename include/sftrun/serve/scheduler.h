#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "sftrun/serve/answer_channel.h"
#include "sftrun/serve/completion_request.h"
#include "sftrun/serve/limits.h"
#include "sftrun/serve/served_model.h"

namespace sftrun::serve {

struct AnswerJob;
class RunningAnswers;
class WaitingAnswers;

/// Generates the answers of all requests on one thread (continuous batching): a waiting answer
/// begins as soon as a row of its model's batch and memory for its longest outcome are free, in the
/// order of arrival.
class Scheduler {
 public:
  /// @param models must outlive this object
  Scheduler(const std::vector<std::unique_ptr<ServedModel>>& models, const Limits& limits);
  ~Scheduler();

  /// Queues all answers of the request: prompt p's choices are p * num_choices, … Thread-safe.
  /// @throws ApiError 429 if there are too many waiting answers, 400 if one needs more memory than
  /// the cache may take, 503 while stopping
  std::shared_ptr<AnswerChannel> submit(const ServedModel& model, const CompletionRequest& request);

  /// Generates until `should_stop`, which is asked at least ten times a second. What is unfinished
  /// then fails.   @throws what ends the server: a lost rank. Answers fail before.
  void run(const std::function<bool()>& should_stop);
  /// Makes the passes of the lead's scheduler until it ends.
  /// @pre the models are divided over ranks, and another one leads
  static void follow(const std::vector<std::unique_ptr<ServedModel>>& models, const Limits& limits);
  Load load() const;  ///< Thread-safe.

 private:
  using Chosen = std::map<RunningAnswers*, std::vector<std::unique_ptr<AnswerJob>>>;
  void require_memory(const ServedModel& model, int64_t length) const;
  bool fits(const AnswerJob& job, const Chosen& chosen) const;
  void start_waiting();
  void step();
  void run_steps(const std::function<bool()>& should_stop);
  /// Until an answer waits. The other ranks of divided models rest, too.
  void rest(const std::function<bool()>& should_stop);
  void fail_all(const ApiError& error);

  const uint64_t cache_bytes_;
  std::map<const ServedModel*, std::unique_ptr<RunningAnswers>> running_;
  RunningAnswers* first_ = nullptr;
  std::unique_ptr<WaitingAnswers> waiting_;
};

}  // namespace sftrun::serve
