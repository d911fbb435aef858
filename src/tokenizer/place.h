#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::tokenizer {

/// The position of a text in the text from which it was taken or made; the chain ends at the
/// encoded text.
struct Place {
  const Place* outer = nullptr;
  uint32_t offset = 0;  ///< where it begins in the outer text
  /// For each byte, its position in the outer text from there; null: byte for byte.
  const std::vector<ByteSpan>* sources = nullptr;
};

/// Bytes of a text as bytes of the text that is encoded.
inline ByteSpan in_original(ByteSpan span, const Place* place) {
  for (; place; place = place->outer) {
    if (place->sources) {
      const std::vector<ByteSpan>& sources = *place->sources;
      if (span.begin < span.end) {
        span = {sources[span.begin].begin, sources[span.end - 1].end};
      } else {
        const uint32_t at = span.begin < sources.size() ? sources[span.begin].begin
                            : sources.empty()           ? 0
                                                        : sources.back().end;
        span = {at, at};
      }
    }
    span = {span.begin + place->offset, span.end + place->offset};
  }
  return span;
}

}  // namespace sftrun::tokenizer
