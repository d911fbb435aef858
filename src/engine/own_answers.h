#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "held_failure.h"
#include "judging.h"
#include "sftrun/train/on_policy_batches.h"
#include "sftrun/train/rollout_answers.h"
#include "turn_writers.h"

namespace sftrun::engine {

/// Writes the answers of the student that a teacher scores (`train.rollouts.share`). What is written
/// depends only on weights, prompts, seed and step, and by rounding on the number of ranks: a run that
/// is resumed writes the same again.
class OwnAnswers {
 public:
  /// All of them must outlive this object.
  explicit OwnAnswers(const TurnWriterInputs& inputs);

  /// @param tokens of the longest prompt with its answer
  void set_longest(int64_t tokens) { longest_ = tokens; }
  /// Takes the memory of answers and gives it back.   @pre set_longest   @throws NoMemoryForAnswers
  /// All ranks call it.
  void rehearse() { writer_->rehearse(longest_); }
  /// Answers examples, one answer each, and keeps some of logged steps in the run directory. All ranks
  /// call it.   @param step from 0
  train::Rollout write(int64_t step, const std::vector<train::AskedExample>& asked);
  void finish() { writer_->finish(); }
  /// Throws what a server did to this rank, as Rollouts::throw_failure.
  void throw_failure() const { failure_.throw_held(); }

 private:
  JudgedAnswer kept_of(size_t index, const Answer& answer, const train::AskedExample& asked,
                       bool is_sample) const;

  TurnWriterInputs in_;
  HeldFailure failure_;
  std::unique_ptr<TurnWriter> writer_;
  int64_t longest_ = 0;
};

}  // namespace sftrun::engine
