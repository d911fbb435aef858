#include <fmt/format.h>

#include "makers.h"
#include "outside_value.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/json_depth.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/hub/post.h"

namespace sftrun::reward {
namespace {

using Json = nlohmann::ordered_json;

hub::Secret token_in(const config::RewardSpec& spec) {
  const auto& variable = spec.settings.at("token_variable");
  if (variable.is_null()) return {};
  return hub::token_in_variable(variable.get<std::string>(),
                                fmt::format("the reward {}", spec.label), spec.where,
                                "token_variable");
}

/// A server that judges whole batches.
class HttpReward : public Function {
 public:
  HttpReward(const config::RewardSpec& spec, const Surroundings& surroundings)
      : label_(spec.label),
        url_(spec.settings.at("url").get<std::string>()),
        options_{.timeout_s = spec.settings.at("timeout").get<double>(),
                 .max_attempts = static_cast<int>(spec.settings.at("retries").get<int64_t>()) + 1,
                 .first_delay_s = surroundings.retry_delay_s,
                 .token = token_in(spec),
                 .should_stop = surroundings.should_stop} {}

  std::vector<Value> values(std::span<const Answer> answers) override {
    Json records = Json::array();
    for (const Answer& answer : answers) records.push_back(judged_record(answer));
    const std::string what = fmt::format("the server of the reward {}", label_);
    const std::string body =
        hub::post_json(url_, to_json_text({{"records", std::move(records)}}), what, options_);
    return read(body, answers);
  }

 private:
  std::vector<Value> read(const std::string& body, std::span<const Answer> answers) const {
    constexpr size_t kMaxDepth = 16;
    const Json json = is_modest_json(body, kMaxDepth)
                          ? Json::parse(body, nullptr, /*allow_exceptions=*/false)
                          : Json(Json::value_t::discarded);
    if (!json.is_object() || !json.contains("rewards") || !json["rewards"].is_array())
      refuse(fmt::format("answers `{}`, which is not {{\"rewards\": […]}}", excerpt(body)));
    const Json& rewards = json["rewards"];
    if (rewards.size() != answers.size())
      refuse(fmt::format("answers {} to {}", counted(rewards.size(), "reward"),
                         counted(answers.size(), "record")));
    std::vector<Value> values(answers.size());
    for (size_t i = 0; i < answers.size(); ++i)
      if (const std::string fault = read_outside_value(rewards[i], values[i]); !fault.empty())
        refuse(fmt::format("answers {} with {}", answers[i].where, fault));
    return values;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(
        fmt::format("the server of the reward {} {}", label_, what), url_,
        "let it answer {\"records\": […]} with {\"rewards\": […]}, a number or null for each");
  }

  std::string label_, url_;
  hub::PostOptions options_;
};

}  // namespace

std::unique_ptr<Function> make_http(const config::RewardSpec& spec,
                                    const Surroundings& surroundings) {
  return std::make_unique<HttpReward>(spec, surroundings);
}

}  // namespace sftrun::reward
