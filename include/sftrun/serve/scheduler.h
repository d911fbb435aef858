#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "sftrun/model/generation_batch.h"
#include "sftrun/serve/answer_channel.h"
#include "sftrun/serve/completion_request.h"
#include "sftrun/serve/served_model.h"
#include "sftrun/tokenizer/generated_text.h"

namespace sftrun::serve {

struct Limits {
  size_t batch_size = 8;     ///< most answers of a model that are generated at the same time
  size_t max_waiting = 256;  ///< most answers that wait for their turn
  uint64_t cache_bytes = 0;  ///< most memory of the key-value caches
};

struct Load {
  size_t num_active = 0, num_waiting = 0;
  uint64_t num_tokens = 0;  ///< generated since the start
};

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
  /// then fails.
  void run(const std::function<bool()>& should_stop);
  /// Makes the passes of the lead's scheduler until it ends.
  /// @pre the models are divided over ranks, and another one leads
  static void follow(const std::vector<std::unique_ptr<ServedModel>>& models, const Limits& limits);
  Load load() const;  ///< Thread-safe.

 private:
  struct Job;
  class Lane;
  using Chosen = std::map<Lane*, std::vector<std::unique_ptr<Job>>>;
  void require_memory(const ServedModel& model, int64_t length) const;
  void require_room(size_t num_answers) const;
  bool fits(const Job& job, const Chosen& chosen) const;
  void start_waiting();
  void step();
  bool wait_for_work();  ///< for a moment   @return whether an answer waits
  /// Until one waits. The other ranks of divided models rest, too.
  void rest(const std::function<bool()>& should_stop);
  static void fail(const Job& job, const ApiError& error);
  void fail_all(const ApiError& error);

  const Limits limits_;
  std::map<const ServedModel*, std::unique_ptr<Lane>> lanes_;
  Lane* first_lane_ = nullptr;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable submitted_;
  std::deque<std::unique_ptr<Job>> waiting_;
  size_t num_active_ = 0;
  uint64_t num_tokens_ = 0;
  bool is_stopped_ = false;
};

}  // namespace sftrun::serve
