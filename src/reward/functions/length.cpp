#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "each_answer.h"
#include "makers.h"
#include "sftrun/core/error.h"
#include "sftrun/core/utf8.h"

namespace sftrun::reward {
namespace {

std::optional<int64_t> count_in(const nlohmann::ordered_json& settings, const char* name) {
  const auto& value = settings.at(name);
  return value.is_null() ? std::nullopt : std::optional(value.get<int64_t>());
}

class LengthReward : public EachAnswer {
 public:
  explicit LengthReward(const config::RewardSpec& spec)
      : label_(spec.label),
        unit_(spec.settings.at("unit").get<std::string>()),
        target_(count_in(spec.settings, "target")),
        maximum_(count_in(spec.settings, "maximum")),
        margin_(spec.settings.at("margin").get<int64_t>()) {}

 protected:
  Value value(const Answer& answer) override {
    const auto n = length(answer);
    if (target_) {
      const auto target = static_cast<double>(*target_);
      return std::max(0.0, 1 - std::abs(static_cast<double>(n) - target) / target);
    }
    const int64_t free = *maximum_ - margin_;
    if (n <= free) return 0;
    if (n > *maximum_) return -1;
    return static_cast<double>(free - n) / static_cast<double>(margin_);
  }

 private:
  int64_t length(const Answer& answer) const {
    if (unit_ == "characters")
      return std::count_if(answer.text.begin(), answer.text.end(),
                           [](char c) { return !is_continuation_byte(c); });
    if (unit_ == "words") return num_words(answer.text);
    if (answer.num_tokens) return *answer.num_tokens;
    throw DataError(
        fmt::format("the reward {} counts tokens, and the record does not say how many", label_),
        answer.where,
        "generate the answers with sftrun (\"generated_tokens\"), or set unit: characters");
  }

  static int64_t num_words(std::string_view text) {
    int64_t count = 0;
    bool is_in_word = false;
    for (const char c : text) {
      const bool is_space = std::isspace(static_cast<unsigned char>(c)) != 0;
      if (!is_space && !is_in_word) ++count;
      is_in_word = !is_space;
    }
    return count;
  }

  std::string label_, unit_;
  std::optional<int64_t> target_, maximum_;
  int64_t margin_;
};

}  // namespace

std::unique_ptr<Function> make_length(const config::RewardSpec& spec, const Surroundings&) {
  return std::make_unique<LengthReward>(spec);
}

}  // namespace sftrun::reward
