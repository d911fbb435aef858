#include "sftrun/data/advantages.h"

#include <map>
#include <utility>

#include "sftrun/core/statistics.h"

namespace sftrun::data {
namespace {

/// As added in trl/trainer/grpo_trainer.py.
constexpr double kSmallSpread = 1e-4;

using GroupKey = std::pair<int32_t, uint64_t>;

struct RewardGroup {
  std::vector<double> rewards;
  double mean = 0, spread = 0;
};

}  // namespace

Advantages advantages_of(const ExampleStore& examples, config::ScaleRewards scale) {
  Advantages found;
  std::map<GroupKey, RewardGroup> groups;
  std::vector<double> all;
  const auto has_reward = [](const StoredExample& stored) {
    return stored.score_kind == static_cast<uint8_t>(ScoreKind::kReward);
  };
  for (int64_t i = 0; i < examples.size(); ++i) {
    const StoredExample& stored = examples.stored(i);
    if (!has_reward(stored)) continue;
    groups[{stored.file, stored.group}].rewards.push_back(stored.score);
    all.push_back(stored.score);
  }
  for (auto& [key, group] : groups) {
    group.mean = mean_of(group.rewards);
    group.spread = sample_deviation(group.rewards, group.mean);
    ++found.num_groups;
    if (group.rewards.size() == 1)
      ++found.num_alone;
    else if (group.spread == 0)
      ++found.num_equal;
  }
  const double spread_of_all = all.empty() ? 0 : sample_deviation(all, mean_of(all));
  for (int64_t i = 0; i < examples.size(); ++i) {
    const StoredExample& stored = examples.stored(i);
    double advantage = stored.score;
    if (has_reward(stored)) {
      const RewardGroup& group = groups.at({stored.file, stored.group});
      advantage -= group.mean;
      if (scale == config::ScaleRewards::kGroup) advantage /= group.spread + kSmallSpread;
      if (scale == config::ScaleRewards::kBatch) advantage /= spread_of_all + kSmallSpread;
    }
    found.of_examples.push_back(advantage);
  }
  return found;
}

}  // namespace sftrun::data
