#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sftrun/tokenizer/tokenizer.h"

/// Sections of a tokenizer.json as the converters of transformers write them.
namespace sftrun::tokenizer {

Json byte_level_section(bool use_regex, bool add_prefix_space = false);
Json split_section(const std::string& pattern);
Json replace_section(const std::string& literal, const std::string& content);
/// A Sequence; a single step is returned as it is.   @param key "normalizers", "pretokenizers",
/// "decoders"
Json sequence_section(const char* key, std::vector<Json> steps);
/// BOS before a text and EOS after it, if they are not null.
struct NamedToken {
  std::string text;
  TokenId id;
};
Json template_section(const std::optional<NamedToken>& bos, const std::optional<NamedToken>& eos);
/// Decoder for SentencePiece's pieces: restores spaces and bytes, and removes the space that was
/// added before the text.
Json pieces_decoder_section(bool strips_first_space);

/// U+2581, which SentencePiece writes for a space.
inline constexpr const char* kVisibleSpace = "\u2581";

}  // namespace sftrun::tokenizer
