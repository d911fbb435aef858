#include "conversations.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "from_all_ranks.h"
#include "judged_together.h"
#include "sftrun/core/error.h"
#include "sftrun/reward/rewards.h"

namespace sftrun::engine {
namespace {

using ConversationJson = nlohmann::ordered_json;

/// The conversations of all ranks that go on, in their order.
std::vector<size_t> open_of_all(const FromAllRanks& ranks) {
  std::vector<size_t> open;
  for (const nlohmann::ordered_json& of_rank : ranks.messages)
    for (const auto& index : of_rank) open.push_back(index.get<size_t>());
  std::sort(open.begin(), open.end());
  return open;
}

/// Turns of an answer have other random numbers than the first one.
uint64_t number_of_turn(uint64_t number, int64_t turn) {
  constexpr uint64_t kTurnBits = 48;
  return number ^ static_cast<uint64_t>(turn) << kTurnBits;
}

}  // namespace

void Conversation::add(Answer&& answer) {
  tokens.insert(tokens.end(), answer.token_ids.begin(), answer.token_ids.end());
  is_own.resize(tokens.size(), 1);
  logprobs.insert(logprobs.end(), answer.logprobs.begin(), answer.logprobs.end());
  turns.push_back({{"role", "assistant"}, {"content", answer.text}});
  text = std::move(answer.text);
  is_cut_short = has_ended = !answer.stopped;
  ++num_own_turns;
}

void Conversation::add(const OutsideTurn& turn, const std::vector<int32_t>& between) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  tokens.insert(tokens.end(), between.begin(), between.end());
  is_own.resize(tokens.size(), 0);
  logprobs.resize(tokens.size(), {.model = kNone, .drawn = kNone});
  turns.push_back({{"role", turn.role}, {"content", turn.content}});
}

bool Conversation::is_all_own() const {
  return std::ranges::find(is_own, 0) == is_own.end();
}

int ConversationWriter::write(PromptTask& task, Conversations& own) {
  std::vector<size_t> open(task.num_answers());
  std::iota(open.begin(), open.end(), size_t{0});
  for (int64_t turn = 0; !open.empty(); ++turn) {
    if (const int code = write_turns(task, turn, open, own)) return code;
    if (environment_ == nullptr) return 0;
    const int code = failure_.guard([&] { hear(task, own); });
    std::vector<size_t> goes_on;
    for (const auto& [index, conversation] : own)
      if (!conversation.has_ended) goes_on.push_back(index);
    const FromAllRanks ranks = from_all_ranks(rank_.comm(), code, goes_on);
    if (ranks.exit_code != 0) return ranks.exit_code;
    open = open_of_all(ranks);
  }
  return 0;
}

/// The next turn of the model in open conversations.
int ConversationWriter::write_turns(const PromptTask& task, int64_t turn,
                                    const std::vector<size_t>& open, Conversations& own) {
  return writer_.write(
      {.name = turn == 0 ? task.name : fmt::format("{}, turn {}", task.name, turn + 1),
       .number = number_of_turn(task.number, turn),
       .step = task.step,
       .answers = open,
       .answers_per_prompt = task.n,
       .prompt =
           [&](size_t index) {
             data::PromptTokens prompt = task.prompt_of(index);
             const std::vector<int32_t>& more = own[index].tokens;
             prompt.ids.insert(prompt.ids.end(), more.begin(), more.end());
             return prompt;
           },
       .max_new_tokens =
           [&](size_t index) { return rollouts_.max_new_tokens - std::ssize(own[index].tokens); },
       .place = [&](size_t index) { return task.place_of(index); },
       .on_answer = [&](size_t index, Answer&& answer) { own[index].add(std::move(answer)); }});
}

/// What the environment says in the open conversations of this rank.
void ConversationWriter::hear(PromptTask& task, Conversations& own) {
  std::vector<size_t> open;
  for (auto& [index, conversation] : own) {
    conversation.has_ended =
        conversation.has_ended || conversation.num_own_turns >= rollouts_.max_turns;
    if (!conversation.has_ended) open.push_back(index);
  }
  for (const std::span<const size_t> some : judged_together<const size_t>(open))
    hear_some(task, some, own);
}

void ConversationWriter::hear_some(PromptTask& task, std::span<const size_t> answers,
                                   Conversations& own) {
  std::vector<ConversationJson> lines;
  for (const size_t index : answers) {
    const Conversation& conversation = own.at(index);
    const ConversationJson& record = task.record_of(index);
    lines.push_back(reward::judged_record(
        {.text = conversation.text, .record = &record, .prompt = reward::prompt_of(record)}));
    lines.back()["turns"] = conversation.turns;
  }
  const std::vector<std::optional<OutsideTurn>> said = environment_->ask(lines);
  for (size_t i = 0; i < answers.size(); ++i)
    add(own.at(answers[i]), said[i], task.place_of(answers[i]));
}

/// @param turn of the environment; nullopt: the conversation has ended
void ConversationWriter::add(Conversation& conversation, const std::optional<OutsideTurn>& turn,
                             const std::string& place) const {
  conversation.has_ended = !turn;
  if (!turn) return;
  const std::vector<int32_t> between =
      environment_->tokens_between(*turn, conversation.tokens.back());
  if (between.empty())
    throw DataError("the program of the environment says an empty turn", place,
                    "print null where a conversation has ended");
  const int64_t left =
      rollouts_.max_new_tokens - std::ssize(conversation.tokens) - std::ssize(between);
  if (left > 0)
    conversation.add(*turn, between);
  else  // no room for another turn of the model
    conversation.is_cut_short = conversation.has_ended = true;
}

}  // namespace sftrun::engine
