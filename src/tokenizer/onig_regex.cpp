#include "onig_regex.h"

#include <fmt/format.h>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"
#include "unicode.h"

namespace sftrun::tokenizer {
namespace {

constexpr size_t kMaxPatternBytes =
    16384;  // a property of five bytes expands to ten thousand bytes

/// Expanded properties make a pattern longer. The matcher's stack grows with the longest repeat in
/// the text.
constexpr OnigLimits kLimits{.pattern_bytes = 4 << 20,
                             .stack_entries = 0,
                             .match_steps = 10'000'000,
                             .search_steps = 100'000'000};

OnigPattern compile(const std::string& pattern, const std::string& where) {
  if (pattern.size() > kMaxPatternBytes) {
    throw DataError(fmt::format("the tokenizer's pattern has {} bytes, more than the limit of {}",
                                pattern.size(), kMaxPatternBytes),
                    where);
  }
  try {
    return {expand_properties(pattern), OnigSyntax::kOniguruma, kLimits};
  } catch (const OnigError& error) {
    throw DataError(fmt::format("the tokenizer's pattern `{}` is not valid: {}", excerpt(pattern),
                                error.what()),
                    where);
  }
}

}  // namespace

Regex::Regex(std::string pattern, const std::string& where)
    : pattern_(std::move(pattern)), compiled_(compile(pattern_, where)) {}

void Regex::find_all(std::string_view text, std::vector<ByteSpan>& matches) const try {
  matches.clear();
  OnigSearch search(compiled_);
  size_t from = 0;
  while (from <= text.size()) {
    const auto found = search.find(text, from);
    if (!found) return;
    const ByteSpan match{static_cast<uint32_t>(found->begin), static_cast<uint32_t>(found->end)};
    const bool repeats =
        match.begin == match.end && !matches.empty() && matches.back().end == match.end;
    if (repeats) {
      from += from < text.size() ? decode_char(text.data() + from).num_bytes : 1;
      continue;
    }
    matches.push_back(match);
    from = match.end;
  }
} catch (const OnigError& error) {
  throw DataError(fmt::format("matching the tokenizer's pattern `{}` failed: {}", excerpt(pattern_),
                              error.what()));
}

}  // namespace sftrun::tokenizer
