#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normal_forms.h"

namespace sftrun::text {

/// SentencePiece's precompiled_charsmap: the replacements of a normalizer. Immutable.
class Charsmap {
 public:
  /// @param bytes a length, a double array of that many bytes (darts-clone's), and the
  /// replacements, each with a NUL behind it   @throws DataError
  Charsmap(std::string_view bytes, const std::string& where);

  /// As the library's `Precompiled`: a grapheme cluster of up to five bytes is replaced whole by
  /// what its shortest known prefix stands for, else each of its characters on its own.
  NormalizedText run(std::string_view text, bool with_sources) const;
  bool surely_keeps(std::string_view text) const;

 private:
  std::optional<std::string_view> replacement(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
  std::bitset<128> ascii_changes_;
};

}  // namespace sftrun::text
