#include <fmt/format.h>

#include "makers.h"
#include "outside_value.h"
#include "server_options.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"

namespace sftrun::reward {
namespace {

using Json = nlohmann::ordered_json;

/// A server that judges whole batches.
class HttpReward : public Function {
 public:
  HttpReward(const config::RewardSpec& spec, const Surroundings& surroundings)
      : name_(outside_name("server", spec)),
        url_(spec.settings.at("url").get<std::string>()),
        options_(server_options(spec, surroundings)) {}

  std::vector<Value> values(std::span<const Answer> answers) override {
    Json records = Json::array();
    for (const Answer& answer : answers) records.push_back(judged_record(answer));
    const std::string body =
        hub::post_json(url_, to_json_text({{"records", std::move(records)}}), name_, options_);
    return read(body, answers);
  }

 private:
  std::vector<Value> read(const std::string& body, std::span<const Answer> answers) const {
    const Json json = parse_response(body);
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
        fmt::format("{} {}", name_, what), url_,
        "let it answer {\"records\": […]} with {\"rewards\": […]}, a number or null for each");
  }

  std::string name_, url_;
  hub::PostOptions options_;
};

}  // namespace

std::unique_ptr<Function> make_http(const config::RewardSpec& spec,
                                    const Surroundings& surroundings) {
  return std::make_unique<HttpReward>(spec, surroundings);
}

}  // namespace sftrun::reward
