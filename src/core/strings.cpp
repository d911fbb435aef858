#include "sftrun/core/strings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "sftrun/core/utf8.h"

namespace sftrun {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const size_t substitution = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] =
          std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + substitution});
      const bool transposed = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (transposed) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

namespace {

/// The first candidate of which `word` is the beginning up to a `_` or `-`: q4_k_m for q4.
std::string continuation_of(std::string_view word, std::span<const std::string> candidates) {
  constexpr size_t kShortest = 2;
  if (word.size() < kShortest) return {};
  const std::string begin = ascii_lower(excerpt(word));
  for (const std::string& candidate : candidates) {
    const bool is_longer = candidate.size() > begin.size() &&
                           (candidate[begin.size()] == '_' || candidate[begin.size()] == '-');
    if (is_longer && ascii_lower(candidate).starts_with(begin)) return candidate;
  }
  return {};
}

/// "packing" of "pack".
std::string begun_with(std::string_view word, std::span<const std::string> candidates) {
  constexpr size_t kShortest = 4;  // many words share three letters
  if (word.size() < kShortest) return {};
  const std::string begin = ascii_lower(excerpt(word));
  const auto found = std::find_if(
      candidates.begin(), candidates.end(),
      [&](const std::string& candidate) { return ascii_lower(candidate).starts_with(begin); });
  return found == candidates.end() ? "" : *found;
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(word.size(), candidate.size()),
                 shorter = std::min(word.size(), candidate.size()), most = longer / 3 + 1;
    if (longer - shorter > most) continue;  // lower bound of the distance
    const size_t distance = edit_distance(ascii_lower(std::string(word)), ascii_lower(candidate));
    if (distance <= most && distance < shorter && distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (best_distance == 1 && ascii_lower(best).starts_with(ascii_lower(std::string(word))))
    return best;  // only the last letter is missing
  if (best_distance == 0) return best;
  if (const std::string longer = continuation_of(word, candidates); !longer.empty()) return longer;
  const std::string whole = best_distance > 1 ? begun_with(word, candidates) : "";
  return whole.empty() ? best : whole;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (;;) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

std::string joined(std::span<const std::string> parts, std::string_view last) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? last : ", ";
    text += parts[i];
  }
  return text;
}

bool is_word_char(char c) {
  return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0;
}

std::string ascii_lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

bool ends_with_name(std::string_view name, std::string_view ending) {
  if (!name.ends_with(ending)) return false;
  return name.size() == ending.size() || name[name.size() - ending.size() - 1] == '.';
}

bool has_path_part(std::string_view path, std::string_view part) {
  return fmt::format(".{}.", path).find(fmt::format(".{}.", part)) != std::string::npos;
}

std::string excerpt(std::string_view text) {
  constexpr size_t kMaxChars = 200;
  size_t num_chars = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (is_continuation_byte(text[at]) && at < 4 * kMaxChars) continue;
    if (num_chars++ == kMaxChars)
      return fmt::format("{}… ({} bytes)", text.substr(0, at), text.size());
  }
  return std::string(text);
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos)
    return std::string(text);
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace sftrun
