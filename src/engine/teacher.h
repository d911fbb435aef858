#pragma once

#include "other_model.h"
#include "prepared_run.h"
#include "sftrun/app/requests/score.h"
#include "sftrun/app/requests/worker.h"

/// Teachers of distillation: `sftrun score --topk` writes what one says of a run's label tokens
/// (data/teacher_scores.h), and training reads it.
namespace sftrun::engine {

/// When the examples of a student are rendered, for templates that write the date: when the teacher's
/// were; nullopt: the run has no teacher.   @throws DataError
std::optional<int64_t> rendering_time_of_teacher(const config::TrainConfig& train);

/// Attaches the scores of `train.teacher` to the data of a run, if it has any, and adds the
/// teacher to its identity.   @param settings of the run, as commands name them   @throws ConfigError, DataError: other tokens or settings, or an example
/// that it has not scored
void attach_teacher(PreparedRun& run, const std::string& settings);

/// A teacher beside the student, if the run has one: `request` says where. All ranks call both.
class TeacherBeside {
 public:
  /// @param run, request must outlive it
  TeacherBeside(PreparedRun& run, const app::WorkerRequest& request);
  /// Checks it by its files, and adds it to the run's identity.   @return 0, or the exit code of a stop
  /// @throws DataError; ConfigError for a model that gives no tokens, or others than the student's
  int identify(Rank& rank);
  /// Loads it, divided as the run is. It then answers for micro-batches.   @return as above
  int load(Rank& rank);

 private:
  OtherModelAsked asked() const;
  void check(const weights::Checkpoint& teacher);

  PreparedRun& run_;
  const app::WorkerRequest& request_;
  std::optional<OtherModel> model_;
  int64_t num_tokens_ = 0, k_ = 0;
};

/// Checks a teacher beside a student by its files.
/// @return the number of tokens of the student's tokenizer that both have embeddings for
/// @throws DataError; ConfigError for a model that gives no tokens, or others than the student's
int64_t require_teacher_of(const weights::Checkpoint& teacher, const data::TextModel& student,
                           int64_t vocab_size);

/// The scores that `train.teacher` names, for these examples.   @param key, settings for messages
/// @pre there are scores
/// @throws ConfigError, DataError: other tokens or settings, or an example that it has not scored
std::shared_ptr<const data::TeacherScores> scores_for(
    const config::TrainConfig& train,
    const std::vector<std::pair<const data::Dataset*, const char*>>& data,
    const data::TextModel& student, int64_t vocab_size, const std::string& settings);

/// @param vocab_size of the model that reads these tokens   @param where names the teacher, for messages
/// @throws ConfigError: the tokenizers are of different content, naming the first token that differs
void require_tokens_of_teacher(const std::vector<std::string>& of_teacher,
                               const data::TextModel& text, int64_t vocab_size,
                               const std::string& where);

/// `sftrun score --topk`.   @pre request.teacher
int score_as_teacher(const app::ScoreRequest& request, Rank& rank);

}  // namespace sftrun::engine
