#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sftrun {

/// The candidate with the smallest edit distance (optimal string alignment) to `word`, or "" when
/// none is near enough to be what was meant (distance over a third of the longer word, plus one).
std::string nearest(std::string_view word, std::span<const std::string> candidates);

std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string join(std::span<const std::string> parts, std::string_view separator);
bool is_valid_utf8(std::string_view text);

}  // namespace sftrun
