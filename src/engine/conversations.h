#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "environment.h"
#include "held_failure.h"
#include "prompt_task.h"
#include "rank.h"
#include "sftrun/config/run_config.h"
#include "turn_writer.h"

namespace sftrun::engine {

/// An answer to a prompt while it is written: turns of the model and of the environment.
struct Conversation {
  std::vector<int32_t> tokens;                ///< behind the prompt
  std::vector<uint8_t> is_own;                ///< [tokens] whether the model wrote it
  std::vector<model::DrawnLogprob> logprobs;  ///< [tokens] NaN where it did not
  std::string text;                           ///< of the model's last turn
  nlohmann::ordered_json turns = nlohmann::ordered_json::array();
  int64_t num_own_turns = 0;
  bool is_cut_short = false, has_ended = false;

  /// A turn of the model.
  void add(Answer&& answer);
  /// A turn of the environment.
  void add(const OutsideTurn& turn, const std::vector<int32_t>& between);
  bool is_all_own() const;
};

/// Answers of this rank by their numbers.
using Conversations = std::map<size_t, Conversation>;

/// Writes conversations turn by turn: all of the model's, then all of the environment's, if there is
/// one.
class ConversationWriter {
 public:
  /// All of them must outlive this object.   @param environment null: an answer has one turn
  ConversationWriter(const config::RolloutsConfig& rollouts, Rank& rank, TurnWriter& writer,
                     Environment* environment, HeldFailure& failure)
      : rollouts_(rollouts),
        rank_(rank),
        writer_(writer),
        environment_(environment),
        failure_(failure) {}

  /// All ranks call it.   @param own answers of this rank
  /// @return 0, or the exit code of a stop or failure of any rank
  int write(PromptTask& task, Conversations& own);

 private:
  int write_turns(const PromptTask& task, int64_t turn, const std::vector<size_t>& open,
                  Conversations& own);
  void hear(PromptTask& task, Conversations& own);
  void hear_some(PromptTask& task, std::span<const size_t> answers, Conversations& own);
  void add(Conversation& conversation, const std::optional<OutsideTurn>& turn,
           const std::string& place) const;

  const config::RolloutsConfig& rollouts_;
  Rank& rank_;
  TurnWriter& writer_;
  Environment* environment_;
  HeldFailure& failure_;
};

}  // namespace sftrun::engine
