#include "judging.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "answer_record.h"
#include "from_all_ranks.h"
#include "judged_together.h"
#include "sftrun/core/error.h"

namespace sftrun::engine {
namespace {

using JudgedJson = nlohmann::ordered_json;

/// What is kept of an answer in the run directory.
JudgedJson sample_of_conversation(const PromptTask& task, size_t index,
                                  const Conversation& conversation,
                                  const train::RolloutAnswer& answer,
                                  const config::RolloutsConfig& rollouts) {
  const Answer written{.text = conversation.text,
                       .num_tokens = static_cast<size_t>(answer.num_own()),
                       .stopped = !conversation.is_cut_short,
                       .token_ids = conversation.tokens,
                       .logprobs = conversation.logprobs};
  JudgedJson sample = record_of(written);
  sample.update(sample_of(written, task.prompt_of(index).ids, rollouts.keeps_sampled_logps()));
  if (!answer.is_own.empty()) sample["completion_mask"] = conversation.is_own;
  if (!rollouts.environment.empty()) sample["turns"] = conversation.turns;
  return sample;
}

/// Without its reward.
JudgedAnswer judged_of(const PromptTask& task, size_t index, const Conversation& conversation,
                       const config::RolloutsConfig& rollouts) {
  JudgedAnswer judged{.index = index, .answer = {}, .sample = {}};
  train::RolloutAnswer& answer = judged.answer;
  answer.tokens = conversation.tokens;
  if (!conversation.is_all_own()) answer.is_own = conversation.is_own;
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    if (!answer.owns(i)) continue;
    answer.drawn_logps.push_back(conversation.logprobs[i].drawn);
    *answer.entropy += conversation.logprobs[i].entropy;
  }
  if (std::isnan(*answer.entropy)) answer.entropy.reset();
  answer.turns = conversation.num_own_turns;
  answer.is_cut_short = conversation.is_cut_short;
  if (task.keeps_samples && task.group_of(index) < static_cast<size_t>(rollouts.num_samples))
    judged.sample = sample_of_conversation(task, index, conversation, answer, rollouts);
  return judged;
}

/// What functions judge.   @param has_turns whether they get the turns of conversations, too
/// @param lines records with turns, which must outlive the result
std::vector<reward::Answer> asked_of(PromptTask& task, const Conversations& own,
                                     const std::vector<JudgedAnswer>& judged, bool has_turns,
                                     std::vector<JudgedJson>& lines) {
  lines.reserve(own.size());  // answers point to them
  std::vector<reward::Answer> answers;
  for (const auto& [index, conversation] : own) {
    const JudgedJson* record = &task.record_of(index);
    JudgedJson prompt = reward::prompt_of(*record);
    if (has_turns) {
      lines.push_back(*record);
      lines.back()["turns"] = conversation.turns;
      record = &lines.back();
    }
    answers.push_back({.text = conversation.text,
                       .record = record,
                       .prompt = std::move(prompt),
                       .num_tokens = judged[answers.size()].answer.num_own(),
                       .token_ids = std::span<const int32_t>(conversation.tokens),
                       .where = task.place_of(index)});
  }
  return answers;
}

}  // namespace

std::vector<JudgedAnswer> judge_conversations(const config::RolloutsConfig& rollouts,
                                              reward::Rewards& rewards, PromptTask& task,
                                              const Conversations& own) {
  std::vector<JudgedAnswer> judged;
  for (const auto& [index, conversation] : own)
    judged.push_back(judged_of(task, index, conversation, rollouts));
  std::vector<JudgedJson> lines;
  const std::vector<reward::Answer> answers =
      asked_of(task, own, judged, !rollouts.environment.empty(), lines);
  size_t next = 0;
  for (const std::span<const reward::Answer> some :
       judged_together<const reward::Answer>(answers)) {
    const reward::Judgement judgement = rewards.judge(some);
    for (size_t i = 0; i < some.size(); ++i, ++next) {
      train::RolloutAnswer& answer = judged[next].answer;
      answer.reward = judgement.rewards[i];
      for (const std::vector<reward::Value>& of_function : judgement.values)
        answer.values.push_back(of_function[i]);
    }
  }
  return judged;
}

JudgedByAll judged_by_all(parallel::Communicator& comm, int code,
                          const std::vector<JudgedAnswer>& own, size_t num_answers,
                          bool has_logps) {
  JudgedJson message = JudgedJson::array();
  for (const JudgedAnswer& one : own)
    message.push_back({one.index, train::to_json(one.answer, has_logps), one.sample});
  const FromAllRanks ranks = from_all_ranks(comm, code, std::move(message));
  JudgedByAll all{.stop_exit_code = ranks.exit_code, .answers = {}};
  if (all.stop_exit_code != 0) return all;
  all.answers.resize(num_answers);
  for (const JudgedJson& of_rank : ranks.messages)
    for (const JudgedJson& one : of_rank) {
      const auto index = one[0].get<size_t>();
      all.answers.at(index) = {index, train::rollout_answer_of(one[1]), one[2]};
    }
  return all;
}

}  // namespace sftrun::engine
