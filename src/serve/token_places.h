#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sftrun::serve {

/// A token of a text.
struct TextToken {
  std::string bytes;  ///< may be a part of a character
  bool is_special = false;
};

/// Characters of UTF-8.
size_t num_chars(std::string_view text);

/// The place of each token in the text that the tokens are of, in characters. A part of a character
/// is at its character. A token that the text lacks (one that the tokenizer added) is at the next
/// one. If the tokenizer changed the text, the places are as near as numbers of characters tell.
/// @param text UTF-8
std::vector<size_t> places_in_text(const std::vector<TextToken>& tokens, std::string_view text);

}  // namespace sftrun::serve
