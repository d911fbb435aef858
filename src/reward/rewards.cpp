#include "sftrun/reward/rewards.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "functions/makers.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/reward/outside_program.h"

namespace sftrun::reward {
namespace {

/// Sums of squares of rewards stay finite, as for those of records.
constexpr double kLargestReward = 1e12;

/// Of finite values that are large, or have large weights.   @param i of the answer
[[noreturn]] void refuse_sum(const config::RewardSpecs& specs, const Judgement& judgement, size_t i,
                             const std::string& where) {
  std::vector<std::string> terms;
  for (size_t f = 0; f < specs.size(); ++f)
    if (const Value& value = judgement.values[f][i])
      terms.push_back(
          fmt::format("{} (weight {:g}, value {:g})", specs[f].label, specs[f].weight, *value));
  throw DataError(
      fmt::format("the weighted sum of the rewards is no number from -{0:g} to {0:g}: {1}",
                  kLargestReward, join(terms, ", ")),
      where, "use smaller weights, or smaller values");
}

}  // namespace

Rewards::Rewards(config::RewardSpecs specs, const Surroundings& surroundings)
    : specs_(std::move(specs)) {
  for (const config::RewardSpec& spec : specs_)
    functions_.push_back(kMakers[static_cast<size_t>(spec.reward)](spec, surroundings));
}

Rewards::~Rewards() = default;

Judgement Rewards::judge(std::span<const Answer> answers) {
  Judgement judgement{.values = {}, .rewards = std::vector<Value>(answers.size())};
  if (answers.empty()) {
    judgement.values.resize(functions_.size());
    return judgement;
  }
  for (size_t f = 0; f < functions_.size(); ++f) {
    judgement.values.push_back(functions_[f]->values(answers));
    const std::vector<Value>& values = judgement.values.back();
    SFTRUN_CHECK_EQ(values.size(), answers.size());
    for (size_t i = 0; i < answers.size(); ++i) {
      if (!values[i]) continue;
      SFTRUN_CHECK(std::isfinite(*values[i]));
      judgement.rewards[i] = judgement.rewards[i].value_or(0) + specs_[f].weight * *values[i];
    }
  }
  for (size_t i = 0; i < answers.size(); ++i)
    if (judgement.rewards[i] && !(std::abs(*judgement.rewards[i]) <= kLargestReward))
      refuse_sum(specs_, judgement, i, answers[i].where);
  return judgement;
}

void Rewards::check_record(const nlohmann::ordered_json& record, const std::string& where) const {
  for (const auto& function : functions_) function->check_record(record, where);
}

void Rewards::rehearse() {
  for (const auto& function : functions_) function->rehearse();
}

void Rewards::finish() {
  for (const auto& function : functions_) function->finish();
}

void require_programs(const config::TrainConfig& train) {
  if (!train.has_rollouts()) return;
  const config::RolloutsConfig& rollouts = train.rollouts;
  const Rewards judges(rollouts.reward, {});
  if (!rollouts.environment.empty())
    const OutsideProgram answers({.name = kEnvironmentProgram,
                                  .command = rollouts.environment,
                                  .where = kEnvironmentSetting});
}

namespace {

using RecordJson = nlohmann::ordered_json;

std::string text_in(const RecordJson& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// Of Alpaca's columns.
RecordJson prompt_of_instruction(const RecordJson& record) {
  const std::string input = text_in(record, "input"), system = text_in(record, "system");
  std::string text = text_in(record, "instruction");
  if (!text.empty() && !input.empty()) text += "\n\n";
  text += input;
  if (system.empty()) return text;
  return RecordJson::array(
      {{{"role", "system"}, {"content", system}}, {{"role", "user"}, {"content", text}}});
}

/// ShareGPT's turns as messages.
RecordJson messages_of(const RecordJson& conversations) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kRoles = {
      {{"human", "user"}, {"gpt", "assistant"}, {"observation", "tool"}, {"function", "tool"}}};
  RecordJson messages = RecordJson::array();
  for (const RecordJson& turn : conversations) {
    if (!turn.is_object() || !turn.contains("from")) return {};
    std::string role = text_in(turn, "from");
    for (const auto& [theirs, ours] : kRoles)
      if (role == theirs) role = ours;
    messages.push_back({{"role", role}, {"content", turn.value("value", RecordJson())}});
  }
  return messages;
}

RecordJson before_last_answer(RecordJson messages) {
  const auto is_answer = [](const RecordJson& turn) {
    return turn.is_object() && turn.contains("role") && turn["role"] == "assistant";
  };
  while (!messages.empty() && is_answer(messages.back())) messages.erase(messages.size() - 1);
  return messages;
}

}  // namespace

RecordJson prompt_of(const RecordJson& record) {
  if (record.contains("prompt")) return record["prompt"];
  const auto list_in = [&](const char* key) {
    return record.contains(key) && record[key].is_array() ? record[key] : RecordJson();
  };
  if (const RecordJson messages = list_in("messages"); messages.is_array())
    return before_last_answer(messages);
  if (const RecordJson turns = list_in("conversations"); turns.is_array())
    return before_last_answer(messages_of(turns));
  return text_in(record, "instruction").empty() ? RecordJson() : prompt_of_instruction(record);
}

nlohmann::ordered_json judged_record(const Answer& answer) {
  nlohmann::ordered_json record = {{"prompt", answer.prompt},
                                   {"completion", std::string(answer.text)}};
  for (const auto& [key, value] : answer.record->items()) {
    if (key == "completion")
      record["reference_completion"] = value;
    else if (key != "prompt")
      record[key] = value;
  }
  return record;
}

}  // namespace sftrun::reward
