#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sftrun {

/// Why a JSON text cannot be read, or a value is another than expected, in our words or those of the JSON library without its
/// numbers, names and positions: "a number is too large". Quotes of input are shortened.
std::string json_reason(const nlohmann::json::exception& error);

}  // namespace sftrun
