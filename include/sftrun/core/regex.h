#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/error.h"

namespace sftrun {

/// A user's regular expression with the semantics of Python's `re`. Compiled once; cheap to copy.
/// Limits: 64 KiB, brackets nested some hundred deep, a million steps per name.
///
/// Syntax that Oniguruma takes and Python does not is refused (core/python_syntax.h).
class PythonRegex {
 public:
  /// re.search, re.match, re.fullmatch; re.finditer, which may take a hundred million steps per text
  enum class Matches { kSearch, kStart, kWhole, kAll };

  /// @param where location for errors: a file, or a key of the configuration
  /// @param blame kUsage: errors are ConfigError; kData: DataError
  /// @throws ConfigError or DataError for an invalid expression, or one that exceeds a limit
  PythonRegex(std::string pattern, Matches how, std::string where = {},
              ExitCode blame = ExitCode::kUsage);

  /// @throws ConfigError or DataError if matching takes too many steps
  bool matches(std::string_view name) const;
  struct Span {
    size_t begin = 0, end = 0;  ///< bytes
  };
  /// The matches that are not empty, in order, without overlaps.   @param text valid UTF-8
  /// @throws ConfigError or DataError if matching takes too many steps
  std::vector<Span> all_in(std::string_view text) const;
  const std::string& pattern() const { return pattern_; }

 private:
  struct Compiled;
  [[noreturn]] void fail(const std::string& message, const std::string& fix) const;
  [[noreturn]] void fail_slow(std::string_view text, const std::string& reason) const;

  std::string pattern_, where_;
  Matches how_;
  ExitCode blame_;
  std::shared_ptr<const Compiled> compiled_;
};

/// Why a text is not a valid regular expression; empty: it is valid.
std::string regex_problem(const std::string& text);

/// Escapes a dotted name, so that the expression matches exactly this name.
std::string escaped(const std::string& text);

}  // namespace sftrun
