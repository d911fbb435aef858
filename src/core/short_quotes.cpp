#include "sftrun/core/short_quotes.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"

namespace sftrun {
namespace {

constexpr size_t kMaxQuote = 200;  // characters, as in `excerpt`
constexpr std::string_view kWordBlanks = " \t\r\n", kOpening = "`'\"([{<",
                           kClosing = "`'\")]}>.,:;";

bool has_more_chars_than(size_t most, std::string_view text) {
  constexpr size_t kBytesOfChar = 4;
  if (text.size() <= most || text.size() > kBytesOfChar * most) return text.size() > most;
  return text.size() - static_cast<size_t>(std::ranges::count_if(text, is_continuation_byte)) >
         most;
}

/// Names as the system takes them (NAME_MAX, PATH_MAX), divided by slashes.
bool has_lengths_of_path(std::string_view text) {
  constexpr size_t kMaxPath = 4096, kMaxName = 255;
  if (text.size() > kMaxPath || text.find('/') == std::string_view::npos) return false;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('/', begin), text.size());
    if (end - begin > kMaxName) return false;
    begin = end + 1;
  }
  return true;
}

bool is_clear_path(std::string_view text) {
  for (const std::string_view root : {"/", "./", "../", "~/"})
    if (text.starts_with(root)) return has_lengths_of_path(text);
  return false;
}

/// Also what a flag or a key names: "key=/a/path" and "key:/a/path".
bool holds_path(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of(kOpening), word.size()));
  const size_t mark = word.substr(0, word.find('/')).find_last_of("=:");
  return is_clear_path(mark == std::string_view::npos ? word : word.substr(mark + 1));
}

/// An `excerpt`, with a few characters before it.   @param rest what follows the text
bool is_excerpt(std::string_view text, std::string_view rest) {
  constexpr std::string_view kEllipsis = "…";
  constexpr size_t kMaxBefore = 64;
  const size_t at = text.rfind(kEllipsis);
  if (at == std::string_view::npos || has_more_chars_than(kMaxQuote + kMaxBefore, text))
    return false;
  const std::string_view after = text.substr(at + kEllipsis.size());
  return (after.empty() ? rest : after).starts_with(" (");
}

/// @param rest what follows the word
std::string short_word(std::string_view word, std::string_view rest) {
  if (holds_path(word) || is_excerpt(word, rest)) return std::string(word);
  const size_t begin = word.find_first_not_of(kOpening), end = word.find_last_not_of(kClosing) + 1;
  constexpr size_t kMaxMarks = 8;
  if (begin > kMaxMarks || word.size() - end > kMaxMarks) return excerpt(word);
  return fmt::format("{}{}{}", word.substr(0, begin), excerpt(word.substr(begin, end - begin)),
                     word.substr(end));
}

/// Commands of any number of paths are ours, not quotes.
bool is_long_without_paths(std::string_view text) {
  constexpr size_t kMaxCommand = size_t{16} << 10;
  if (!has_more_chars_than(kMaxQuote, text)) return false;
  if (text.size() > kMaxCommand) return true;
  std::string others;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(kWordBlanks, begin), text.size() - 1) + 1;
    const std::string_view word = text.substr(begin, end - begin);
    if (!holds_path(word)) others += word;
    begin = end;
  }
  return has_more_chars_than(kMaxQuote, others);
}

std::string with_short_words(std::string_view text) {
  std::string result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(kWordBlanks, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    result += has_more_chars_than(kMaxQuote, word) ? short_word(word, text.substr(end))
                                                   : std::string(word);
    const size_t next = std::min(text.find_first_not_of(kWordBlanks, end), text.size());
    result += text.substr(end, next - end);
    begin = next;
  }
  return result;
}

/// The position after the quote that begins at `begin`, or npos.
size_t end_of_quote(std::string_view text, size_t begin) {
  const size_t end = text.find(text[begin], begin + 1);
  if (end == std::string_view::npos) return end;
  const bool is_of_lines = text.substr(begin, end - begin).find('\n') != std::string_view::npos;
  return text[begin] == '"' && is_of_lines ? std::string_view::npos : end + 1;
}

std::string with_short_pairs(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = std::min(text.find_first_of("`\"", at), text.size());
    result += text.substr(at, begin - at);
    if (begin == text.size()) break;
    const size_t end = end_of_quote(text, begin);
    if (end == std::string_view::npos) {
      result += text[begin];
      at = begin + 1;
      continue;
    }
    const std::string_view inner = text.substr(begin + 1, end - begin - 2);
    const bool is_words = inner.find_first_of(kWordBlanks) != std::string_view::npos;
    const bool stays =
        !is_words || !is_long_without_paths(inner) || is_clear_path(inner) || is_excerpt(inner, "");
    result += text[begin];
    result += stays ? std::string(inner) : excerpt(inner);
    result += text[begin];
    at = end;
  }
  return result;
}

}  // namespace

std::string with_short_quotes(std::string_view message) {
  if (message.size() <= kMaxQuote) return std::string(message);
  return with_short_words(with_short_pairs(message));
}

std::string with_visible_controls(std::string_view message) {
  constexpr char32_t kDelete = 0x7F, kLastControl = 0x9F;
  const auto is_plain = [](char c) { return c >= ' ' && c < '\x7F'; };
  if (std::ranges::all_of(message, is_plain)) return std::string(message);
  std::string shown;
  for (size_t at = 0; at < message.size();) {
    const DecodedChar found = decode_char_at(message, at);
    const bool is_control =
        found.code < ' ' || (found.code >= kDelete && found.code <= kLastControl);
    if (is_control && found.code != '\n' && found.code != '\t')
      shown += fmt::format("\\x{:02x}", static_cast<uint32_t>(found.code));
    else
      shown += message.substr(at, found.num_bytes);
    at += found.num_bytes;
  }
  return shown;
}

std::string shown_path(std::string_view path) {
  const bool is_short = !has_more_chars_than(kMaxQuote, path);
  return is_short || has_lengths_of_path(path) ? std::string(path) : excerpt(path);
}

std::string with_short_quotes_after_path(std::string_view place) {
  constexpr size_t kMaxPlace = size_t{8} << 10;  // of a path and what is said of it
  const bool may_be_path = place.size() <= kMaxPlace && place.find('/') != std::string_view::npos;
  if (!may_be_path) return excerpt(place);
  const size_t end = std::min(place.find_first_of(kWordBlanks), place.size());
  if (!has_lengths_of_path(place.substr(0, end))) return with_short_quotes(place);
  return std::string(place.substr(0, end)) + with_short_quotes(place.substr(end));
}

}  // namespace sftrun
