#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "sftrun/core/utf8.h"

/// Code points of UTF-8 text and their properties in Python's str methods. Never reads out of
/// bounds: a byte that is not part of a valid sequence counts as one code point.
namespace sftrun::templates::jinja::unicode {

size_t sequence_length(std::string_view text, size_t at);  ///< bytes of the code point at `at`
size_t previous(std::string_view text, size_t at);  ///< start of the code point that ends at `at`

size_t length(std::string_view text);                           ///< in code points
size_t byte_offset(std::string_view text, size_t code_points);  ///< text.size() when beyond the end
bool is_ascii(std::string_view text);

bool is_space(char32_t code);
bool is_printable(char32_t code);
bool is_alpha(char32_t code);
bool is_decimal(char32_t code);
bool is_digit(char32_t code);
bool is_numeric(char32_t code);
bool is_alnum(char32_t code);
bool is_lower(char32_t code);
bool is_upper(char32_t code);
bool is_title(char32_t code);

enum class Case : uint8_t { kLower, kUpper, kTitle };
/// Up to three code points, as UTF-8.
std::string converted(char32_t code, Case to);

}  // namespace sftrun::templates::jinja::unicode
