#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

/// Oniguruma behind one door: patterns come from files of strangers, so each has bounds.
namespace sftrun {

struct OnigLimits {
  size_t pattern_bytes = 0;
  unsigned stack_entries = 0;      ///< of the matcher's stack; 0: as many as the text asks for
  unsigned long match_steps = 0;   ///< ways tried at one position of the text
  unsigned long search_steps = 0;  ///< and at all positions of one search
};

enum class OnigSyntax { kOniguruma, kPython };

/// What Oniguruma, or a limit, refuses; `what()` is its sentence. Callers add pattern and place.
struct OnigError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A compiled pattern. Immutable; an `OnigSearch` of each thread's own searches with it.
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
    size_t begin = 0, end = 0;  ///< bytes
  };
  /// The first match at `from` or behind it. @param text valid UTF-8
  /// @throws OnigError where a limit is reached
  std::optional<Match> find(std::string_view text, size_t from = 0);
  /// A match that begins at the text's first byte.
  std::optional<Match> match(std::string_view text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sftrun
