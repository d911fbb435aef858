#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "jinja/tagged_text.h"
#include "jinja/unicode.h"

/// Python's str operations on tagged text: characters that survive keep their origin, changed ones
/// take the origin of what they replace.
namespace sftrun::templates::jinja {

enum class Side : uint8_t { kLeft = 1, kRight = 2, kBoth = 3 };
/// @param chars the characters to remove; none: white space
TaggedText strip(const TaggedText& text, std::optional<std::string_view> chars, Side side);

TaggedText with_case(const TaggedText& text, unicode::Case to);
TaggedText capitalize(const TaggedText& text);
TaggedText title_words(const TaggedText& text);  ///< str.title
TaggedText swap_case(const TaggedText& text);

/// Like std::string_view::find, but in linear time, because both texts come from templates.
size_t find(std::string_view text, std::string_view wanted, size_t from = 0);
/// Its cost in bytes read.
size_t find_cost(std::string_view text, std::string_view wanted);

/// @param count maximum number of replacements; negative: all
TaggedText replace(const TaggedText& text, std::string_view old, const TaggedText& with,
                   int64_t count);

/// Number of replacements.
size_t count_replacements(const TaggedText& text, std::string_view old, int64_t count);

/// @param max_splits negative: no limit
std::vector<TaggedText> split(const TaggedText& text, std::string_view separator,
                              int64_t max_splits, bool from_right);
size_t count_words(const TaggedText& text);  ///< separated by white space
std::vector<TaggedText> split_on_space(const TaggedText& text, int64_t max_splits, bool from_right);
std::vector<TaggedText> split_lines(const TaggedText& text, bool keep_ends);

bool is_line_break(char32_t code);  ///< separators of str.splitlines

}  // namespace sftrun::templates::jinja
