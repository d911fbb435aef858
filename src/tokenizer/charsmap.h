#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normal_forms.h"

namespace sftrun::tokenizer {

/// SentencePiece's precompiled_charsmap: the replacements of a normalizer. Immutable.
class Charsmap {
 public:
  /// @param bytes a length, a double array of that many bytes (darts-clone's), and the
  /// replacements, each followed by a NUL   @throws DataError
  Charsmap(std::string_view bytes, const std::string& where);

  /// As the library's `Precompiled`: a grapheme cluster of up to five bytes is replaced as a whole
  /// by the replacement of its shortest known prefix, else each of its characters is replaced
  /// separately.
  NormalizedText run(std::string_view text, bool with_sources) const;
  bool surely_keeps(std::string_view text) const;

 private:
  std::optional<std::string_view> replacement(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
  std::bitset<128> ascii_changes_;
};

}  // namespace sftrun::tokenizer
