#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
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
  /// @param models not empty; the first one stays
  Scheduler(const ServedModels& models, const Limits& limits);
  ~Scheduler();

  /// Queues all answers of the request: prompt p's choices are p * num_choices, … Thread-safe.
  /// @throws ApiError 429 if there are too many waiting answers, 400 if one needs more memory than
  /// the cache may take, 404 if the model was removed, 503 while stopping
  std::shared_ptr<AnswerChannel> submit(const ServedModel& model, const CompletionRequest& request);

  /// Generates until `should_stop`, which is asked at least ten times a second. What is unfinished
  /// then fails.   @throws what ends the server: a lost rank. Answers fail before.
  void run(const std::function<bool()>& should_stop);
  /// Makes the passes of the lead's scheduler until it ends.
  /// @pre the models are divided over ranks, and another one leads
  static void follow(const ServedModels& models, const Limits& limits);
  Load load() const;  ///< Thread-safe.

  ServedModels models() const;  ///< as they are now. Thread-safe.
  /// Does work between two steps, on the thread of `run`, and waits for it. Thread-safe.
  /// @throws what the work throws; ApiError 503 if the server stops before
  void between_steps(const std::function<void()>& work);
  /// Adds a model, in the place of the one with the same id, whose answers go on.
  /// @pre called by work of `between_steps`; no model is divided over ranks
  void put(std::shared_ptr<ServedModel> model);
  /// No request reaches the model any more. Its answers go on; then nothing of it is kept here.
  /// @pre as `put`; it is not the first one
  void remove(const ServedModel& model);

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

  void do_work();
  void refuse_work();
  void forget_removed();

  const Limits limits_;
  /// Guards `models_` and `running_`, which the thread of `run` alone changes.
  mutable std::shared_mutex models_mutex_;
  ServedModels models_;
  ServedModels removed_;  // they may have answers; used by the thread of `run` alone
  std::map<const ServedModel*, std::unique_ptr<RunningAnswers>> running_;
  RunningAnswers* first_ = nullptr;
  std::unique_ptr<WaitingAnswers> waiting_;
  std::mutex work_mutex_;  // guards the two members below
  std::vector<std::packaged_task<void()>> work_;
  bool is_stopped_ = false;
};

}  // namespace sftrun::serve
