#include "sftrun/train/rollout_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/statistics.h"

namespace sftrun::train {
namespace {

std::vector<double> rewards_of(std::span<const RolloutAnswer> answers) {
  std::vector<double> rewards;
  for (const RolloutAnswer& answer : answers)
    if (answer.reward) rewards.push_back(*answer.reward);
  return rewards;
}

std::vector<double> values_of(std::span<const RolloutAnswer> answers, size_t function) {
  std::vector<double> values;
  for (const RolloutAnswer& answer : answers)
    if (answer.values[function]) values.push_back(*answer.values[function]);
  return values;
}

std::optional<double> optional_of(const nlohmann::ordered_json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

/// nullopt: there is no value.
std::optional<double> mean_of_any(const std::vector<double>& values) {
  return values.empty() ? std::nullopt : std::optional(mean_of(values));
}

}  // namespace

nlohmann::ordered_json json_of(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

nlohmann::ordered_json to_json(const RolloutAnswer& answer, bool has_logps) {
  nlohmann::ordered_json values = nlohmann::ordered_json::array();
  for (const std::optional<double>& value : answer.values) values.push_back(json_of(value));
  nlohmann::ordered_json json = {{"tokens", answer.tokens},
                                 {"is_own", answer.is_own},
                                 {"entropy", json_of(answer.entropy)},
                                 {"turns", answer.turns},
                                 {"is_cut_short", answer.is_cut_short},
                                 {"reward", json_of(answer.reward)},
                                 {"values", std::move(values)}};
  if (has_logps) json["drawn_logps"] = answer.drawn_logps;
  return json;
}

RolloutAnswer rollout_answer_of(const nlohmann::ordered_json& json) {
  RolloutAnswer answer{.tokens = json.at("tokens").get<std::vector<int32_t>>(),
                       .is_own = json.at("is_own").get<std::vector<uint8_t>>(),
                       .drawn_logps = {},
                       .entropy = optional_of(json.at("entropy")),
                       .turns = json.at("turns").get<int64_t>(),
                       .is_cut_short = json.at("is_cut_short").get<bool>(),
                       .reward = optional_of(json.at("reward")),
                       .values = {}};
  if (json.contains("drawn_logps"))
    answer.drawn_logps = json["drawn_logps"].get<std::vector<float>>();
  for (const nlohmann::ordered_json& value : json.at("values"))
    answer.values.push_back(optional_of(value));
  return answer;
}

int64_t RolloutAnswer::num_own() const {
  if (is_own.empty()) return std::ssize(tokens);
  return std::count(is_own.begin(), is_own.end(), uint8_t{1});
}

AnswerStatistics statistics_of(std::span<const RolloutAnswer> answers) {
  SFTRUN_CHECK(!answers.empty());
  const auto num_answers = static_cast<double>(answers.size());
  std::optional<double> entropy = 0.0;
  double turns = 0, cut_short = 0;
  std::vector<double> lengths, ended;
  for (const RolloutAnswer& answer : answers) {
    lengths.push_back(static_cast<double>(answer.num_own()));
    if (!answer.is_cut_short) ended.push_back(lengths.back());
    entropy = answer.entropy && entropy ? std::optional(*entropy + *answer.entropy) : std::nullopt;
    turns += static_cast<double>(answer.turns);
    cut_short += answer.is_cut_short ? 1 : 0;
  }
  const double mean_length = mean_of(lengths);
  if (entropy) *entropy /= mean_length * num_answers;
  const auto [shortest, longest] = std::ranges::minmax(lengths);
  return {.mean_reward = mean_of_any(rewards_of(answers)),
          .entropy = entropy,
          .mean_turns = turns / num_answers,
          .mean_length = mean_length,
          .min_length = shortest,
          .max_length = longest,
          .mean_terminated_length = mean_of_any(ended),
          .clipped_ratio = cut_short / num_answers};
}

GroupStatistics statistics_of_groups(std::span<const RolloutAnswer> answers, int64_t n) {
  const auto size = static_cast<size_t>(n);
  SFTRUN_CHECK(size > 0 && !answers.empty() && answers.size() % size == 0);
  GroupStatistics groups;
  for (size_t first = 0; first < answers.size(); first += size) {
    const std::vector<double> rewards = rewards_of(answers.subspan(first, size));
    const bool is_silent =
        std::ranges::adjacent_find(rewards, std::ranges::not_equal_to()) == rewards.end();
    groups.reward_std += sample_deviation(rewards, mean_of(rewards));
    groups.frac_reward_zero_std += is_silent ? 1 : 0;
  }
  const auto num_groups = static_cast<double>(answers.size() / size);
  groups.reward_std /= num_groups;
  groups.frac_reward_zero_std /= num_groups;
  return groups;
}

observe::NamedValues metrics_of(const GroupStatistics& groups) {
  return {{"reward_std", groups.reward_std}, {"frac_reward_zero_std", groups.frac_reward_zero_std}};
}

observe::NamedValues metrics_of(const AnswerStatistics& all, std::span<const RolloutAnswer> answers,
                                const config::RewardSpecs& rewards) {
  observe::NamedValues metrics;
  for (size_t f = 0; f < rewards.size(); ++f) {
    const std::vector<double> values = values_of(answers, f);
    if (values.empty()) continue;
    const double mean = mean_of(values);
    metrics.emplace_back(fmt::format("rewards/{}/mean", rewards[f].label), mean);
    metrics.emplace_back(fmt::format("rewards/{}/std", rewards[f].label),
                         sample_deviation(values, mean));
  }
  if (all.entropy) metrics.emplace_back("entropy", *all.entropy);
  if (all.mean_turns != 1) metrics.emplace_back("completions/mean_turns", all.mean_turns);
  metrics.emplace_back("completions/min_length", all.min_length);
  metrics.emplace_back("completions/max_length", all.max_length);
  if (all.mean_terminated_length)
    metrics.emplace_back("completions/mean_terminated_length", *all.mean_terminated_length);
  return metrics;
}

}  // namespace sftrun::train
