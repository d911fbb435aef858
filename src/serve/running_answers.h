#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "answer_job.h"
#include "sftrun/model/generation_batch.h"
#include "sftrun/serve/served_model.h"

namespace sftrun::serve {

/// The answers of one model that are generated now: the rows of its batch, and what their channels
/// are sent. A failure of the model ends these answers, not the server; but the server if other
/// ranks have a part of the model, because they do not know of the failure.
class RunningAnswers {
 public:
  /// @param model must outlive this object   @param number of the batch among those of the server
  RunningAnswers(const ServedModel& model, size_t num_rows, size_t number);

  const model::GenerationBatch& batch() const { return batch_; }
  size_t num_active() const { return jobs_.size(); }
  /// Those that were generated since the last call.
  uint64_t take_num_tokens();
  bool is_divided() const { return is_divided_; }  ///< other ranks have parts of the model

  /// @param jobs at most `batch().num_free()`
  void start(std::vector<std::unique_ptr<AnswerJob>> jobs);
  /// Generates a token of each answer that is still wanted.
  void step();
  void fail_all(const ApiError& error);
  /// As fail_all, because there is no memory. This takes none itself.
  void abandon_all() noexcept;

  /// For the other ranks of a divided model, as of model::GenerationBatch.
  void rest() { batch_.rest(); }
  void wake() { batch_.wake(); }
  void finish() { batch_.finish(); }

 private:
  model::BatchHooks hooks();
  void reset();
  void add(std::vector<std::unique_ptr<AnswerJob>>& jobs);
  void generate();
  void guarded(const std::function<void()>& body);
  void guarded_on_all_ranks(const std::function<void()>& body);
  void failed(const std::string& what);
  bool take(size_t id, model::NewToken&& token);
  void end(size_t id, model::Generation&& answer);
  void send_scores(size_t id, std::vector<model::TokenLogprobs>&& scores);

  std::map<size_t, std::unique_ptr<AnswerJob>> jobs_;
  model::GenerationBatch batch_;
  size_t next_id_ = 0;
  uint64_t num_tokens_ = 0;
  bool is_used_ = false;     ///< the cache has memory
  bool must_reset_ = false;  ///< the batch has rows of failed answers; emptying it takes memory
  bool is_divided_;
};

}  // namespace sftrun::serve
