#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "sftrun/core/error.h"

namespace sftrun {

/// A regular expression of a user's, with the meaning it has in Python's `re`. Compiled once, and
/// then cheap to copy. Bounded: 64 KiB, brackets some hundred deep, a million steps for a name.
///
/// Beyond Python, Oniguruma takes lookbehinds of any length, flags in the middle of a pattern, and
/// a{3,2}.
class PythonRegex {
 public:
  enum class Matches { kSearch, kStart, kWhole };  ///< re.search, re.match, re.fullmatch

  /// @param where what errors name: a file, or a key of the configuration
  /// @param blame ConfigError (kUsage) or DataError
  /// @throws ConfigError or DataError for what is no expression, or is past a limit
  PythonRegex(std::string pattern, Matches how, std::string where = {},
              ExitCode blame = ExitCode::kUsage);

  /// @throws ConfigError or DataError for an expression that takes too many steps
  bool matches(std::string_view name) const;
  const std::string& pattern() const { return pattern_; }

 private:
  struct Compiled;
  [[noreturn]] void fail(const std::string& message, const std::string& fix) const;

  std::string pattern_, where_;
  Matches how_;
  ExitCode blame_;
  std::shared_ptr<const Compiled> compiled_;
};

/// Why a text is no regular expression; empty: it is one.
std::string regex_problem(const std::string& text);

/// A dotted name as the expression that is this name alone.
std::string escaped(const std::string& text);

}  // namespace sftrun
