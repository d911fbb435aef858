#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/text/tokenizer.h"

/// Unicode's normalization forms as the `tokenizers` library has them (its tables are of Unicode
/// 9).
namespace sftrun::text {

/// A text and, where it differs from its source, which source bytes each of its bytes stands for.
struct NormalizedText {
  std::string text;
  std::vector<ByteSpan>
      sources;  ///< one a byte of `text`, or none at all where they are not wanted
};

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// True if the form leaves the text as it is, found without normalising. May answer false for a
/// text that it does leave.
bool is_surely(NormalForm form, std::string_view text);

/// @param text valid UTF-8
NormalizedText normalize(NormalForm form, std::string_view text, bool with_sources);

}  // namespace sftrun::text
