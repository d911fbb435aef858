#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

/// Wrapper of Oniguruma. Patterns come from untrusted files, so compilation and search have limits.
namespace sftrun {

struct OnigLimits {
  size_t pattern_bytes = 0;
  unsigned stack_entries = 0;      ///< of the matcher's stack; 0: unlimited
  unsigned long match_steps = 0;   ///< matching steps at one position of the text
  unsigned long search_steps = 0;  ///< matching steps at all positions in one search
};

enum class OnigSyntax { kOniguruma, kPython };

/// A pattern or search that Oniguruma or a limit rejects; `what()` gives the reason. Callers add
/// the pattern and its location.
struct OnigError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A compiled pattern. Immutable; each thread needs its own `OnigSearch`.
class OnigPattern {
 public:
  /// @throws OnigError
  OnigPattern(std::string_view pattern, OnigSyntax syntax, const OnigLimits& limits);
  ~OnigPattern();
  OnigPattern(OnigPattern&&) noexcept;
  OnigPattern& operator=(OnigPattern&&) noexcept;

 private:
  friend class OnigSearch;
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

/// Not thread-safe. The pattern must outlive it.
class OnigSearch {
 public:
  explicit OnigSearch(const OnigPattern& pattern);
  ~OnigSearch();
  OnigSearch(const OnigSearch&) = delete;
  OnigSearch& operator=(const OnigSearch&) = delete;

  struct Match {
    size_t begin = 0, end = 0;  ///< byte offsets
  };
  /// The first match that begins at `from` or later. @param text valid UTF-8
  /// @throws OnigError if a limit is reached
  std::optional<Match> find(std::string_view text, size_t from = 0);
  /// The match that begins at the first byte of the text.
  std::optional<Match> match(std::string_view text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sftrun
