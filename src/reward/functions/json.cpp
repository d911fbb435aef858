#include <algorithm>

#include "each_answer.h"
#include "makers.h"
#include "sftrun/core/outside_json.h"
#include "sftrun/core/strings.h"

namespace sftrun::reward {
namespace {

using Json = nlohmann::ordered_json;

/// What stands between ```json and ```, if that is all of the text; else the text.
std::string_view without_fence(std::string_view text) {
  constexpr std::string_view kFence = "```";
  text = trim(text);
  if (!text.starts_with(kFence) || !text.ends_with(kFence)) return text;
  const size_t line_end = text.find('\n');
  if (line_end == std::string_view::npos || line_end + kFence.size() >= text.size()) return text;
  return text.substr(line_end + 1, text.size() - kFence.size() - line_end - 1);
}

class JsonReward : public EachAnswer {
 public:
  explicit JsonReward(const config::RewardSpec& spec)
      : keys_(spec.settings.at("keys").get<std::vector<std::string>>()),
        type_(keys_.empty() ? spec.settings.at("type").get<std::string>() : "object"),
        takes_fence_(spec.settings.at("fence").get<bool>()),
        is_partial_(spec.settings.at("partial").get<bool>()) {}

 protected:
  Value value(const Answer& answer) override {
    constexpr size_t kMaxDepth = 256;
    const std::string_view text = takes_fence_ ? without_fence(answer.text) : answer.text;
    const Json json = parse_outside_json(text, kMaxDepth);
    if (json.is_discarded()) return 0;
    if ((type_ == "object" && !json.is_object()) || (type_ == "array" && !json.is_array()))
      return 0;
    const auto num_there = std::count_if(
        keys_.begin(), keys_.end(), [&](const std::string& key) { return json.contains(key); });
    const auto num_wanted = std::ssize(keys_);
    if (num_there == num_wanted) return 1;
    return is_partial_ ? static_cast<double>(1 + num_there) / static_cast<double>(1 + num_wanted)
                       : 0;
  }

 private:
  std::vector<std::string> keys_;
  std::string type_;
  bool takes_fence_, is_partial_;
};

}  // namespace

std::unique_ptr<Function> make_json(const config::RewardSpec& spec, const Surroundings&) {
  return std::make_unique<JsonReward>(spec);
}

}  // namespace sftrun::reward
