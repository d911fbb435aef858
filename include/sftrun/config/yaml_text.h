#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sftrun::config {

/// A value as one line of YAML that YAML 1.1 and 1.2 read as the same value.
std::string yaml_text(const nlohmann::ordered_json& value);

}  // namespace sftrun::config
