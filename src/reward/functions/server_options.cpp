#include "server_options.h"

#include <fmt/format.h>

#include "sftrun/core/outside_json.h"

namespace sftrun::reward {
namespace {

hub::Secret token_in(const config::RewardSpec& spec) {
  const auto& variable = spec.settings.at("token_variable");
  if (variable.is_null()) return {};
  return hub::token_in_variable(variable.get<std::string>(),
                                fmt::format("the reward {}", spec.label), spec.where,
                                "token_variable");
}

}  // namespace

hub::PostOptions server_options(const config::RewardSpec& spec, const Surroundings& surroundings) {
  const auto retries = spec.settings.at("retries").get<int64_t>();
  return {.timeout_s = spec.settings.at("timeout").get<double>(),
          .max_attempts = static_cast<int>(retries) + 1,
          .first_delay_s = surroundings.retry_delay_s,
          .max_busy_s = retries > 0 ? surroundings.busy_s : 0,
          .outage = hub::new_outage(),
          .token = token_in(spec),
          .should_stop = surroundings.should_stop};
}

nlohmann::ordered_json parse_response(const std::string& body) {
  constexpr size_t kMaxDepth = 16;
  nlohmann::ordered_json json = parse_outside_json(body, kMaxDepth);
  return json.is_discarded() ? nlohmann::ordered_json() : json;
}

}  // namespace sftrun::reward
