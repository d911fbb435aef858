#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/onig.h"
#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::tokenizer {

/// A pattern in oniguruma's syntax, matched by oniguruma but with the character properties of our
/// own tables, so that results do not depend on the installed version. Immutable; `find_all` is
/// safe to call from several threads.
class Regex {
 public:
  /// @throws DataError with oniguruma's message.
  Regex(std::string pattern, const std::string& where);

  /// All matches from left to right without overlaps; an empty match directly after another match
  /// is left out.
  /// @param text valid UTF-8   @param[out] matches replaced
  /// @throws DataError for a pattern that takes too many steps
  void find_all(std::string_view text, std::vector<ByteSpan>& matches) const;
  const std::string& pattern() const { return pattern_; }

 private:
  std::string pattern_;
  OnigPattern compiled_;
};

/// The pattern with \p{L}, \P{L}, \w, \d, … written out as ranges of the tables. Properties that
/// the tables lack (such as other scripts) stay. Exposed for tests.
std::string expand_properties(std::string_view pattern);

}  // namespace sftrun::tokenizer
