#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/text/tokenizer.h"

namespace sftrun::text {

/// A pattern in oniguruma's syntax, matched by oniguruma but with the character properties of our
/// own tables: which code points are letters must not depend on the version that a system has
/// installed. Immutable; `find_all` is safe to call from several threads.
class Regex {
 public:
  /// @throws DataError with oniguruma's message.
  Regex(std::string pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// All matches from left to right, none overlapping; an empty one is left out right behind
  /// another match.
  /// @param text valid UTF-8   @param[out] matches replaced
  void find_all(std::string_view text, std::vector<ByteSpan>& matches) const;
  const std::string& pattern() const { return pattern_; }

 private:
  struct Compiled;
  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

/// The pattern with \p{L}, \P{L}, \w, \d, … written out as ranges of the tables. Properties that
/// the tables do not have (other scripts, say) stay. Exposed for tests.
std::string expand_properties(std::string_view pattern);

}  // namespace sftrun::text
