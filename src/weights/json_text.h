#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace sftrun::weights {

/// Equal keys of one object: Python's json keeps the last one, and a reader of tensors refuses them.
enum class EqualKeys { kLastCounts, kRefused };

/// Parses JSON from an untrusted file. @throws DataError with line and column for invalid JSON or
/// UTF-8, nesting deeper than 64, and equal keys that are refused
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          EqualKeys equal_keys = EqualKeys::kLastCounts);

}  // namespace sftrun::weights
