#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// Formats and parses numbers with units.
namespace sftrun {

std::string format_bytes(uint64_t num_bytes);  ///< 1.50 GiB
std::string format_duration(double seconds);   ///< 1h 02m, 3m 20s, 12 s, 340 ms
std::string format_count(uint64_t count);      ///< 134.5M

/// "10m", "90s", "2h", "1h30m" or plain seconds. nullopt for other texts.
std::optional<double> parse_duration_s(std::string_view text);

}  // namespace sftrun
