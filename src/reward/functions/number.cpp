#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "each_answer.h"
#include "found_number.h"
#include "makers.h"
#include "reference.h"
#include "sftrun/core/log.h"

namespace sftrun::reward {
namespace {

NumberPlace place_named(const std::string& word) {
  if (word == "boxed") return NumberPlace::kBoxed;
  if (word == "hashes") return NumberPlace::kHashes;
  return word == "last" ? NumberPlace::kLast : NumberPlace::kAuto;
}

class NumberReward : public EachAnswer {
 public:
  explicit NumberReward(const config::RewardSpec& spec)
      : label_(spec.label),
        key_(spec.settings.at("key").get<std::string>()),
        place_(place_named(spec.settings.at("find").get<std::string>())),
        tolerance_(spec.settings.at("tolerance").get<double>()) {}

  void check_record(const nlohmann::ordered_json& record, const std::string& where) const override {
    references_of(record, key_, label_, where);
  }

 protected:
  /// An answer to a record whose reference has no number is not judged.
  Value value(const Answer& answer) override {
    std::vector<double> numbers;
    for (const std::string& text : references_of(*answer.record, key_, label_, answer.where))
      if (const auto number = find_number(text, NumberPlace::kAuto)) numbers.push_back(*number);
    if (numbers.empty()) {
      if (!std::exchange(has_warned_, true))
        log::warn("the reward {} has no value where \"{}\" has no number ({})", label_, key_,
                  answer.where);
      return std::nullopt;
    }
    const auto found = find_number(answer.text, place_);
    const auto is_right = [&](double right) {
      return std::abs(*found - right) <= tolerance_ * std::max(1.0, std::abs(right));
    };
    return found && std::any_of(numbers.begin(), numbers.end(), is_right) ? 1 : 0;
  }

 private:
  std::string label_, key_;
  NumberPlace place_;
  double tolerance_;
  bool has_warned_ = false;
};

}  // namespace

std::unique_ptr<Function> make_number(const config::RewardSpec& spec, const Surroundings&) {
  return std::make_unique<NumberReward>(spec);
}

}  // namespace sftrun::reward
