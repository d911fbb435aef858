#pragma once

#include "prepared_run.h"
#include "sftrun/app/requests/score.h"

/// Teachers of distillation: `sftrun score --topk` writes what one says of a run's label tokens
/// (data/teacher_scores.h), and training reads it.
namespace sftrun::engine {

/// When the examples of a student are rendered, for templates that write the date: when the teacher's
/// were; nullopt: the run has no teacher.   @throws DataError
std::optional<int64_t> rendering_time_of_teacher(const config::TrainConfig& train);

/// Attaches the scores of `train.teacher` to the data of a run, if its objective needs them, and adds the
/// teacher to its identity.   @throws ConfigError, DataError: other tokens or settings, or an example
/// that it has not scored
void attach_teacher(PreparedRun& run);

/// @param vocab_size of the model that reads these tokens   @param where names the teacher, for messages
/// @throws ConfigError: the tokenizers are of different content, naming the first token that differs
void require_tokens_of_teacher(const std::vector<std::string>& of_teacher,
                               const data::TextModel& text, int64_t vocab_size,
                               const std::string& where);

/// `sftrun score --topk`.   @pre request.teacher
int score_as_teacher(const app::ScoreRequest& request, Rank& rank);

}  // namespace sftrun::engine
