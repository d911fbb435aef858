#include <algorithm>

#include "each_answer.h"
#include "makers.h"
#include "reference.h"
#include "sftrun/core/strings.h"

namespace sftrun::reward {
namespace {

class ExactMatch : public EachAnswer {
 public:
  explicit ExactMatch(const config::RewardSpec& spec)
      : label_(spec.label),
        key_(spec.settings.at("key").get<std::string>()),
        ignores_case_(spec.settings.at("ignore_case").get<bool>()) {}

  void check_record(const nlohmann::ordered_json& record, const std::string& where) const override {
    references_of(record, key_, label_, where);
  }

 protected:
  Value value(const Answer& answer) override {
    const auto references = references_of(*answer.record, key_, label_, answer.where);
    if (references.empty()) return std::nullopt;
    const std::string text = compared(answer.text);
    return std::any_of(references.begin(), references.end(),
                       [&](const std::string& one) { return compared(one) == text; })
               ? 1
               : 0;
  }

 private:
  std::string compared(std::string_view text) const {
    std::string trimmed(trim(text));
    return ignores_case_ ? ascii_lower(std::move(trimmed)) : trimmed;
  }

  std::string label_, key_;
  bool ignores_case_;
};

}  // namespace

std::unique_ptr<Function> make_exact_match(const config::RewardSpec& spec, const Surroundings&) {
  return std::make_unique<ExactMatch>(spec);
}

}  // namespace sftrun::reward
