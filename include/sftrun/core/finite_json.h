#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace sftrun {

/// The first number in a value that JSON cannot write, because it is NaN or infinite: "options.scale[2]"; nullopt: none.
/// @param name of the value itself: "options"
std::optional<std::string> find_not_finite(const nlohmann::ordered_json& value,
                                           const std::string& name);

}  // namespace sftrun
