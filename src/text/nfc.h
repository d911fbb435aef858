#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/text/tokenizer.h"

/// Normalization Form C as the `tokenizers` library has it (its tables are of Unicode 9).
namespace sftrun::text {

/// A text and, where it differs from its source, which source bytes each of its bytes stands for.
struct NormalizedText {
  std::string text;
  std::vector<ByteSpan> sources;  ///< one a byte of `text`
};

/// True if NFC leaves the text as it is, found without normalising. May answer false for a normal
/// text.
bool is_surely_nfc(std::string_view text);

/// @param text valid UTF-8
NormalizedText to_nfc(std::string_view text);

}  // namespace sftrun::text
