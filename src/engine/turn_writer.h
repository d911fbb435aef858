#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sftrun/data/prompt.h"
#include "text_generator.h"

namespace sftrun::engine {

/// Answers of which each goes on by a turn.
struct Turns {
  std::string name;                    ///< the same on every rank, and used once
  uint64_t number = 0;                 ///< of their random numbers; an answer has its own of them
  int64_t step = 0;                    ///< steps that are done then
  const std::vector<size_t>& answers;  ///< the same on every rank
  size_t answers_per_prompt = 1;
  std::function<data::PromptTokens(size_t answer)> prompt;  ///< all tokens before the turn
  std::function<int64_t(size_t answer)> max_new_tokens;
  std::function<std::string(size_t answer)> place;  ///< "file:line" of the record, for errors
  std::function<void(size_t answer, Answer&&)> on_answer;
};

/// Who writes the answers of `train.rollouts`, with token ids and log-probabilities.
class TurnWriter {
 public:
  virtual ~TurnWriter() = default;
  /// Each answer comes to the rank that it is dealt to, whichever turn it is. All ranks call it.
  /// @return 0, or the exit code of a stop that any rank was asked for
  virtual int write(const Turns& turns) = 0;
  /// Takes the memory of answers and gives it back, or asks the server whether it can write them.
  /// @param length of the longest prompt with its answer
  /// @throws NoMemoryForAnswers, and what a server throws   All ranks call it.
  virtual void rehearse(int64_t length) = 0;
  /// Ends what writing has started.
  virtual void finish() {}
};

}  // namespace sftrun::engine
