#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace sftrun::weights {

/// Parses JSON from an untrusted file. @throws DataError with line and column for invalid JSON or
/// UTF-8, nesting deeper than 64, and duplicate keys in one object
nlohmann::json parse_json(std::string_view text, const std::string& where);

}  // namespace sftrun::weights
