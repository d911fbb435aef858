#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace sftrun::weights {

/// Parses JSON from a file that nobody vouches for. @throws DataError with line and column for
/// anything that is not JSON (also non-UTF-8 text), for nesting deeper than 64 and for a key that
/// appears twice in one object.
nlohmann::json parse_json(std::string_view text, const std::string& where);

}  // namespace sftrun::weights
