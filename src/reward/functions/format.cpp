#include <fmt/format.h>

#include "each_answer.h"
#include "makers.h"
#include "sftrun/core/strings.h"

namespace sftrun::reward {
namespace {

/// With `tags: [think]` and `strict: false` TRL's think_format_reward.
class FormatReward : public EachAnswer {
 public:
  explicit FormatReward(const config::RewardSpec& spec)
      : is_strict_(spec.settings.at("strict").get<bool>()) {
    for (const auto& tag : spec.settings.at("tags")) {
      const auto name = tag.get<std::string>();
      opening_.push_back(fmt::format("<{}>", name));
      closing_.push_back(fmt::format("</{}>", name));
    }
  }

 protected:
  Value value(const Answer& answer) override {
    std::string_view rest = answer.text;
    for (size_t i = 0; i < opening_.size(); ++i) {
      // The first part is at the very beginning, which the prompt's end decides.
      if (!skip_to(i, rest)) return 0;
      const size_t end = rest.find(closing_[i]);
      if (end == std::string_view::npos) return 0;
      rest.remove_prefix(end + closing_[i].size());
    }
    if (is_strict_ && !trim(rest).empty()) return 0;
    return has_each_once(answer.text) ? 1 : 0;
  }

 private:
  /// To the text behind the opening tag.
  bool skip_to(size_t part, std::string_view& rest) const {
    const size_t at = rest.find(opening_[part]);
    if (at == std::string_view::npos) return false;
    const std::string_view between = rest.substr(0, at);
    const bool is_first = part == 0;
    if (is_first ? at != 0 : is_strict_ && !trim(between).empty()) return false;
    rest.remove_prefix(at + opening_[part].size());
    return true;
  }

  bool has_each_once(std::string_view text) const {
    for (size_t i = 0; i < opening_.size(); ++i) {
      if (text.find(opening_[i]) != text.rfind(opening_[i])) return false;
      if (is_strict_ && text.find(closing_[i]) != text.rfind(closing_[i])) return false;
    }
    return true;
  }

  std::vector<std::string> opening_, closing_;
  bool is_strict_;
};

}  // namespace

std::unique_ptr<Function> make_format(const config::RewardSpec& spec, const Surroundings&) {
  return std::make_unique<FormatReward>(spec);
}

}  // namespace sftrun::reward
