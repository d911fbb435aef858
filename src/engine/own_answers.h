#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "answering_model.h"
#include "judging.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/text_model.h"
#include "sftrun/train/on_policy_batches.h"
#include "sftrun/train/rollout_answers.h"
#include "turn_writer.h"

namespace sftrun::engine {

/// Writes the answers of the student that a teacher scores (`train.rollouts.share`). What is written
/// depends only on weights, prompts, seed and step, and by rounding on the number of ranks: a run that
/// is resumed writes the same again.
class OwnAnswers {
 public:
  struct Inputs {
    const config::RunConfig& config;
    const data::TextModel& text;
    AnsweringModel::Inputs model;
    std::filesystem::path run_dir;
  };
  /// All of them must outlive this object.
  explicit OwnAnswers(const Inputs& inputs);

  /// @param tokens of the longest prompt with its answer
  void set_longest(int64_t tokens) { longest_ = tokens; }
  /// Takes the memory of answers and gives it back.   @pre set_longest   @throws NoMemoryForAnswers
  /// All ranks call it.
  void rehearse() { writer_->rehearse(longest_); }
  /// Answers examples, one answer each, and keeps some of logged steps in the run directory. All ranks
  /// call it.   @param step from 0
  train::Rollout write(int64_t step, const std::vector<train::AskedExample>& asked);

 private:
  JudgedAnswer kept_of(size_t index, const Answer& answer, const train::AskedExample& asked,
                       bool is_sample) const;

  Inputs in_;
  std::unique_ptr<TurnWriter> writer_;
  int64_t longest_ = 0;
};

}  // namespace sftrun::engine
