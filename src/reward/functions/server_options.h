#pragma once

#include "sftrun/hub/post.h"
#include "sftrun/reward/rewards.h"

namespace sftrun::reward {

/// Of the settings timeout, retries and token_variable.
/// @throws ConfigError for a variable that is not set
hub::PostOptions server_options(const config::RewardSpec& spec, const Surroundings& surroundings);

/// The response of a server; null: it is no JSON, or nested too deeply.
nlohmann::ordered_json parse_response(const std::string& body);

}  // namespace sftrun::reward
