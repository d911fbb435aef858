#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "each_answer.h"
#include "makers.h"
#include "sftrun/core/error.h"

namespace sftrun::reward {
namespace {

/// TRL's get_repetition_penalty_reward.
class RepetitionReward : public EachAnswer {
 public:
  explicit RepetitionReward(const config::RewardSpec& spec)
      : label_(spec.label),
        size_(static_cast<size_t>(spec.settings.at("ngram").get<int64_t>())),
        penalty_(spec.settings.at("penalty").get<double>()) {}

 protected:
  Value value(const Answer& answer) override {
    if (!answer.token_ids)
      throw DataError(fmt::format("the reward {} reads token ids, and the record has none", label_),
                      answer.where, "generate the answers with --logprobs (\"completion_ids\")");
    const std::span<const int32_t> ids = *answer.token_ids;
    if (ids.size() < size_) return 0;
    const size_t num_groups = ids.size() - size_ + 1;
    const double repeated =
        1 - static_cast<double>(num_different(ids, num_groups)) / static_cast<double>(num_groups);
    return repeated == 0 ? 0 : repeated * penalty_;
  }

 private:
  size_t num_different(std::span<const int32_t> ids, size_t num_groups) const {
    std::vector<size_t> begins(num_groups);
    std::iota(begins.begin(), begins.end(), 0);
    const auto group = [&](size_t begin) { return ids.subspan(begin, size_); };
    std::sort(begins.begin(), begins.end(), [&](size_t a, size_t b) {
      return std::lexicographical_compare(group(a).begin(), group(a).end(), group(b).begin(),
                                          group(b).end());
    });
    const auto end = std::unique(begins.begin(), begins.end(), [&](size_t a, size_t b) {
      return std::equal(group(a).begin(), group(a).end(), group(b).begin());
    });
    return static_cast<size_t>(end - begins.begin());
  }

  std::string label_;
  size_t size_;
  double penalty_;
};

}  // namespace

std::unique_ptr<Function> make_repetition(const config::RewardSpec& spec, const Surroundings&) {
  return std::make_unique<RepetitionReward>(spec);
}

}  // namespace sftrun::reward
