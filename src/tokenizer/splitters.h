#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "onig_regex.h"

/// Splits a text into pieces before the model runs.
namespace sftrun::tokenizer {

/// A piece of the split text; the parts of a text follow each other without gaps.
struct Part {
  uint32_t begin = 0, end = 0;
  bool is_match = false;
};

/// What a split does with the matches (the delimiters), with the names of the `tokenizers` library.
enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous
};

/// Immutable; `split` is safe to call from several threads.
class Splitter {
 public:
  virtual ~Splitter() = default;
  /// @param text valid UTF-8, not empty   @param[out] parts replaced: what remains of the text, in
  /// order
  virtual void split(std::string_view text, std::vector<Part>& parts) const = 0;
};

/// GPT-2's pattern, which is part of ByteLevel, and the patterns that Llama 3 and Qwen derived from
/// it.
extern const char* const kGpt2Pattern;
extern const char* const kLlama3Pattern;
extern const char* const kQwen2Pattern;
extern const char* const kQwen35Pattern;
/// GPT-4o's and Llama 4's; without a scanner.
extern const char* const kGpt4oPattern;

/// Split by a pattern. Common patterns (those above) are matched by special scanners, which are ten
/// times as fast.
/// @throws DataError for an invalid pattern
std::unique_ptr<Splitter> make_pattern_splitter(const std::string& pattern, SplitBehavior behavior,
                                                bool invert, const std::string& where);
/// The same, always by oniguruma, as the reference for tests of the scanners.
std::unique_ptr<Splitter> make_regex_splitter(const std::string& pattern, SplitBehavior behavior,
                                              bool invert, const std::string& where);
std::unique_ptr<Splitter> make_literal_splitter(const std::string& literal, SplitBehavior behavior,
                                                bool invert);
/// Runs of numeric characters, or each one, on their own.
std::unique_ptr<Splitter> make_digits_splitter(bool individual);
/// Words, and runs of characters that are neither word characters nor spaces: \w+|[^\w\s]+ of
/// Rust's regex crate.
std::unique_ptr<Splitter> make_words_splitter();
/// Words between white space.
std::unique_ptr<Splitter> make_space_splitter();
std::unique_ptr<Splitter> make_punctuation_splitter(SplitBehavior behavior);
/// Runs of `length` characters; the last may be shorter.
std::unique_ptr<Splitter> make_fixed_length_splitter(size_t length);
/// Runs of one script; characters of any script before the first run are left out, as in the
/// library.
std::unique_ptr<Splitter> make_script_splitter();
/// Scanner of a known pattern (every part a match, all isolated), or null.
std::unique_ptr<Splitter> make_known_scanner(const std::string& pattern);

}  // namespace sftrun::tokenizer
