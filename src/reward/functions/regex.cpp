#include "sftrun/core/regex.h"

#include <utility>

#include "each_answer.h"
#include "makers.h"
#include "sftrun/core/log.h"

namespace sftrun::reward {
namespace {

PythonRegex::Matches matches_of(const std::string& word) {
  if (word == "search") return PythonRegex::Matches::kSearch;
  return word == "start" ? PythonRegex::Matches::kStart : PythonRegex::Matches::kWhole;
}

class RegexReward : public EachAnswer {
 public:
  explicit RegexReward(const config::RewardSpec& spec)
      : label_(spec.label),
        pattern_(spec.settings.at("pattern").get<std::string>(),
                 matches_of(spec.settings.at("match").get<std::string>()), spec.where) {}

 protected:
  Value value(const Answer& answer) override {
    try {
      return pattern_.matches(answer.text) ? 1 : 0;
    } catch (const ConfigError& error) {  // one text must not end a run of hours
      if (!std::exchange(has_warned_, true))
        log::warn("the reward {} is 0 where the pattern takes too many steps: {}", label_,
                  error.message());
      return 0;
    }
  }

 private:
  std::string label_;
  PythonRegex pattern_;
  bool has_warned_ = false;
};

}  // namespace

std::unique_ptr<Function> make_regex(const config::RewardSpec& spec, const Surroundings&) {
  return std::make_unique<RegexReward>(spec);
}

}  // namespace sftrun::reward
