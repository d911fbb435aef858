#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/tokenizer/tokenizer.h"

/// Unicode's normalization forms as in the `tokenizers` library, whose tables are Unicode 9.
namespace sftrun::tokenizer {

/// A text and, if it differs from its source, the source bytes of each of its bytes.
struct NormalizedText {
  std::string text;
  std::vector<ByteSpan> sources;  ///< one per byte of `text`, or empty if not requested
};

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// A quick check: true only if the text stays unchanged; may be false even then.
bool is_surely(NormalForm form, std::string_view text);

/// @param text valid UTF-8
NormalizedText normalize(NormalForm form, std::string_view text, bool with_sources);

}  // namespace sftrun::tokenizer
