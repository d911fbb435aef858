#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "normal_forms.h"

/// GPT-2's encoding of bytes as visible characters: every byte is one character below U+0144.
namespace sftrun::tokenizer {

/// The character that stands for a byte.
char32_t byte_to_char(unsigned char byte);
/// The UTF-8 text that stands for the bytes.
std::string bytes_to_visible(std::string_view bytes);
/// The same, and on request the byte of each character.
NormalizedText bytes_to_visible(std::string_view bytes, bool with_sources);
/// The bytes that the text stands for; nullopt if one of its characters stands for no byte.
std::optional<std::string> visible_to_bytes(std::string_view text);

}  // namespace sftrun::tokenizer
