#include "jinja/text_ops.h"
#include "sftrun/core/utf8.h"

#include <algorithm>
#include <cstring>

namespace sftrun::templates::jinja {
namespace {

bool is_cased(char32_t code) {
  return unicode::is_lower(code) || unicode::is_upper(code) || unicode::is_title(code);
}

constexpr char32_t kSigma = 0x3A3;
constexpr const char* kFinalSigma = "\xCF\x82";

/// Greek's capital sigma is written differently at the end of a word.
bool is_final_sigma(std::string_view bytes, size_t at) {
  const size_t after = at + unicode::sequence_length(bytes, at);
  const bool letter_before =
      at > 0 && is_cased(decode_char_at(bytes, unicode::previous(bytes, at)).code);
  return letter_before && (after >= bytes.size() || !is_cased(decode_char_at(bytes, after).code));
}

void append_with_case(TaggedText& out, const TaggedText& text, size_t at, unicode::Case to) {
  const char32_t code = decode_char_at(text.bytes(), at).code;
  const bool final_sigma =
      code == kSigma && to == unicode::Case::kLower && is_final_sigma(text.bytes(), at);
  out.append(final_sigma ? kFinalSigma : unicode::converted(code, to), text.origin_at(at));
}

/// Applies `choose(code, is_first)` to every character to find the case it gets.
template <typename Choose>
TaggedText convert(const TaggedText& text, Choose&& choose) {
  TaggedText out;
  for (size_t at = 0; at < text.size();) {
    const auto [code, num_bytes] = decode_char_at(text.bytes(), at);
    append_with_case(out, text, at, choose(code, at == 0));
    at += num_bytes;
  }
  return out;
}

bool is_stripped(char32_t code, const std::optional<std::string_view>& chars) {
  if (!chars) return unicode::is_space(code);
  for (size_t at = 0; at < chars->size();) {
    const auto [candidate, num_bytes] = decode_char_at(*chars, at);
    if (candidate == code) return true;
    at += num_bytes;
  }
  return false;
}

}  // namespace

TaggedText strip(const TaggedText& text, std::optional<std::string_view> chars, Side side) {
  const std::string& bytes = text.bytes();
  size_t begin = 0, end = bytes.size();
  if (side != Side::kRight) {
    while (begin < end) {
      const auto [code, num_bytes] = decode_char_at(bytes, begin);
      if (!is_stripped(code, chars)) break;
      begin += num_bytes;
    }
  }
  if (side != Side::kLeft) {
    while (end > begin) {
      const size_t last = unicode::previous(bytes, end);
      if (!is_stripped(decode_char_at(bytes, last).code, chars)) break;
      end = last;
    }
  }
  return text.slice(begin, end);
}

TaggedText with_case(const TaggedText& text, unicode::Case to) {
  return convert(text, [to](char32_t, bool) { return to; });
}

TaggedText capitalize(const TaggedText& text) {
  return convert(text, [](char32_t, bool first) {
    return first ? unicode::Case::kTitle : unicode::Case::kLower;
  });
}

TaggedText title_words(const TaggedText& text) {
  bool after_letter = false;
  return convert(text, [&after_letter](char32_t code, bool) {
    const auto to = after_letter ? unicode::Case::kLower : unicode::Case::kTitle;
    after_letter = is_cased(code);
    return to;
  });
}

TaggedText swap_case(const TaggedText& text) {
  return convert(text, [](char32_t code, bool) {
    return unicode::is_upper(code) ? unicode::Case::kLower : unicode::Case::kUpper;
  });
}

size_t find(std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found =
      ::memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_cost(std::string_view text, std::string_view wanted) {
  constexpr size_t kShortBytes = 32, kPasses = 4;  // over the text, for longer strings
  return wanted.size() <= kShortBytes ? text.size() : kPasses * (text.size() + wanted.size());
}

TaggedText replace(const TaggedText& text, std::string_view old, const TaggedText& with,
                   int64_t count) {
  TaggedText out;
  const std::string& bytes = text.bytes();
  size_t at = 0;
  if (old.empty()) {  // between all characters
    for (int64_t done = 0; at <= bytes.size() && (count < 0 || done < count); ++done) {
      out.append(with);
      const size_t next = at < bytes.size() ? at + unicode::sequence_length(bytes, at) : at + 1;
      out.append(text, at, std::min(next, bytes.size()));
      at = next;
    }
  } else {
    for (int64_t done = 0; count < 0 || done < count; ++done) {
      const size_t found = find(bytes, old, at);
      if (found == std::string::npos) break;
      out.append(text, at, found);
      out.append(with);
      at = found + old.size();
    }
  }
  out.append(text, at, bytes.size());
  return out;
}

size_t count_replacements(const TaggedText& text, std::string_view old, int64_t count) {
  const std::string& bytes = text.bytes();
  const size_t most = count < 0 ? bytes.size() + 1 : static_cast<size_t>(count);
  if (old.empty()) return std::min(most, unicode::length(bytes) + 1);
  size_t found = 0;
  for (size_t at = find(bytes, old); at != std::string::npos && found < most;
       at = find(bytes, old, at + old.size()))
    ++found;
  return found;
}

std::vector<TaggedText> split(const TaggedText& text, std::string_view separator,
                              int64_t max_splits, bool from_right) {
  const std::string& bytes = text.bytes();
  std::vector<TaggedText> parts;
  if (!from_right) {
    size_t at = 0;
    for (size_t found = find(bytes, separator, at);
         found != std::string::npos &&
         (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits);
         found = find(bytes, separator, at)) {
      parts.push_back(text.slice(at, found));
      at = found + separator.size();
    }
    parts.push_back(text.slice(at, bytes.size()));
    return parts;
  }
  size_t end = bytes.size();
  while (end >= separator.size() &&
         (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits)) {
    const size_t found = bytes.rfind(separator, end - separator.size());
    if (found == std::string::npos) break;
    parts.push_back(text.slice(found + separator.size(), end));
    end = found;
  }
  parts.push_back(text.slice(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

namespace {

/// End of the run of one kind (space or not) that begins at `at`.
size_t end_of_run(const std::string& bytes, size_t at, bool of_space) {
  while (at < bytes.size() && unicode::is_space(decode_char_at(bytes, at).code) == of_space)
    at += unicode::sequence_length(bytes, at);
  return at;
}

/// Begin of the run that ends at `end`.
size_t begin_of_run(const std::string& bytes, size_t end, bool of_space) {
  while (end > 0) {
    const size_t at = unicode::previous(bytes, end);
    if (unicode::is_space(decode_char_at(bytes, at).code) != of_space) break;
    end = at;
  }
  return end;
}

}  // namespace

size_t count_words(const TaggedText& text) {
  const std::string& bytes = text.bytes();
  size_t words = 0;
  for (size_t at = end_of_run(bytes, 0, true); at < bytes.size(); ++words)
    at = end_of_run(bytes, end_of_run(bytes, at, false), true);
  return words;
}

std::vector<TaggedText> split_on_space(const TaggedText& text, int64_t max_splits,
                                       bool from_right) {
  std::vector<TaggedText> parts;
  const std::string& bytes = text.bytes();
  const auto is_last = [&] {
    return max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits;
  };
  if (from_right) {
    for (size_t end = begin_of_run(bytes, bytes.size(), true), begin = 0; end > 0;
         end = begin_of_run(bytes, begin, true)) {
      begin = is_last() ? 0 : begin_of_run(bytes, end, false);
      parts.push_back(text.slice(begin, end));
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  for (size_t begin = end_of_run(bytes, 0, true), end = 0; begin < bytes.size();
       begin = end_of_run(bytes, end, true)) {
    end = is_last() ? bytes.size() : end_of_run(bytes, begin, false);
    parts.push_back(text.slice(begin, end));
  }
  return parts;
}

bool is_line_break(char32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

std::vector<TaggedText> split_lines(const TaggedText& text, bool keep_ends) {
  std::vector<TaggedText> lines;
  const std::string& bytes = text.bytes();
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const auto [code, num_bytes] = decode_char_at(bytes, at);
    size_t after = at + num_bytes;
    if (is_line_break(code)) {
      if (code == '\r' && after < bytes.size() && bytes[after] == '\n') ++after;
      lines.push_back(text.slice(begin, keep_ends ? after : at));
      begin = after;
    }
    at = after;
  }
  if (begin < bytes.size()) lines.push_back(text.slice(begin, bytes.size()));
  return lines;
}

}  // namespace sftrun::templates::jinja
