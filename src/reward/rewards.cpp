#include "sftrun/reward/rewards.h"

#include <fmt/format.h>

#include <cmath>
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

void require_program(const config::CallbacksConfig& callbacks) {
  if (callbacks.command.empty() || callbacks.events.empty()) return;
  const std::string why = missing_program(callbacks.command);
  if (!why.empty())
    throw ConfigError(fmt::format("callbacks.command cannot run: {}", why),
                      fmt::format("{} (callbacks.command)", excerpt(callbacks.command)),
                      "correct the command, or remove callbacks; paths in it begin at the working "
                      "directory");
}

}  // namespace sftrun::reward
