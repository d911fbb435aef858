#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "conversations.h"
#include "prompt_task.h"
#include "sftrun/config/run_config.h"
#include "sftrun/reward/rewards.h"
#include "sftrun/train/rollout_answers.h"

namespace sftrun::engine {

/// An answer that travels to all ranks.
struct JudgedAnswer {
  size_t index = 0;
  train::RolloutAnswer answer;
  nlohmann::ordered_json sample;  ///< what is kept of it; null: nothing
};

/// Judges the answers of this rank.   @throws as Rewards::judge
std::vector<JudgedAnswer> judge_conversations(const config::RolloutsConfig& rollouts,
                                              reward::Rewards& rewards, PromptTask& task,
                                              const Conversations& own);

/// What the ranks tell each other of their answers.
struct JudgedByAll {
  int stop_exit_code = 0;             ///< not 0: a rank was asked to stop, or failed
  std::vector<JudgedAnswer> answers;  ///< all of the task, in order; none of a stop
};
/// All ranks call it.   @param code of this rank   @param has_logps whether log-probabilities are sent
JudgedByAll judged_by_all(parallel::Communicator& comm, int code,
                          const std::vector<JudgedAnswer>& own, size_t num_answers, bool has_logps);

}  // namespace sftrun::engine
