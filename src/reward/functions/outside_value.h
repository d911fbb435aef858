#pragma once

#include <string>
#include <string_view>

#include "sftrun/reward/rewards.h"

/// Values that a program or a server of the user says.
namespace sftrun::reward {

/// Who says them, for messages: "the program of the reward judge"; without a label of its own "the judging program".
/// @param kind "program", "server"
std::string outside_name(const char* kind, const config::RewardSpec& spec);

/// A number, or null for an answer that it does not judge.
/// @param value receives it   @return what it is instead: "`abc`, which is not a number"; empty: fine
std::string read_outside_value(const nlohmann::ordered_json& json, Value& value);
/// The same for a line: a number, null, or {"reward": number}.
std::string read_outside_line(std::string_view line, Value& value);

}  // namespace sftrun::reward
