#include <algorithm>

#include "each_answer.h"
#include "makers.h"
#include "reference.h"
#include "sftrun/observe/rouge.h"

namespace sftrun::reward {
namespace {

class RougeReward : public EachAnswer {
 public:
  explicit RougeReward(const config::RewardSpec& spec)
      : label_(spec.label), key_(spec.settings.at("key").get<std::string>()) {
    const auto measure = spec.settings.at("measure").get<std::string>();
    measure_ = measure == "precision" ? &observe::RougeScore::precision
               : measure == "recall"  ? &observe::RougeScore::recall
                                      : &observe::RougeScore::fmeasure;
  }

  void check_record(const nlohmann::ordered_json& record, const std::string& where) const override {
    references_of(record, key_, label_, where);
  }

 protected:
  /// Of several references the best.
  Value value(const Answer& answer) override {
    Value best;
    for (const std::string& text : references_of(*answer.record, key_, label_, answer.where))
      best = std::max(best.value_or(0), observe::rouge(text, answer.text).rouge_l.*measure_);
    return best;
  }

 private:
  std::string label_, key_;
  double observe::RougeScore::*measure_;
};

}  // namespace

std::unique_ptr<Function> make_rouge_l(const config::RewardSpec& spec, const Surroundings&) {
  return std::make_unique<RougeReward>(spec);
}

}  // namespace sftrun::reward
