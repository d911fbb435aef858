#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sftrun::config {

/// A value on one line of YAML that readers of YAML 1.1 and 1.2 take for the same value.
std::string yaml_text(const nlohmann::ordered_json& value);

}  // namespace sftrun::config
