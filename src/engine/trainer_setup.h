#pragma once

#include <memory>
#include <optional>

#include "own_answers.h"
#include "prepared_run.h"
#include "rank.h"
#include "rollouts.h"
#include "sftrun/config/base_record.h"
#include "sftrun/launch/event_commands.h"
#include "sftrun/train/trainer_inputs.h"
#include "training_answers.h"

/// What the trainer of a prepared run is made from.
namespace sftrun::engine {

/// Without the adapter, the answers and the meters of the machine. Divides the data into batches.
/// @param run, rank must outlive the trainer
train::TrainerInputs trainer_inputs(PreparedRun& run, Rank& rank);
/// Fills in the adapter that the run trains.   @return how its base is kept; nullopt: no adapter
std::optional<config::BaseRecord> describe_adapter(const PreparedRun& run,
                                                   train::TrainerInputs& inputs);
/// Answers for the validation prompts; nullptr: the run wants none.
std::unique_ptr<TrainingAnswers> training_answers(PreparedRun& run, Rank& rank);
/// What writes and judges the answers that the run trains on, which become its batches; nullptr: the run
/// writes none.   @pre it outlives `run.data.batches`'s last use
std::unique_ptr<Rollouts> rollouts_of(PreparedRun& run, Rank& rank);
/// What writes the student's answers, which become a part of the run's batches; nullptr: the run writes
/// none.   @pre as of rollouts_of
std::unique_ptr<OwnAnswers> own_answers_of(PreparedRun& run, Rank& rank);
/// Commands for the events of training, on rank 0; the front end starts those for its end.
launch::EventCommandOptions event_commands(const config::RunConfig& config, const Rank& rank);

}  // namespace sftrun::engine
