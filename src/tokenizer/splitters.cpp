#include "splitters.h"

#include <algorithm>
#include <utility>

#include "sftrun/core/utf8.h"
#include "unicode.h"

namespace sftrun::tokenizer {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

/// Joins adjacent parts of the same kind.
void join_contiguous(std::vector<Part>& parts) {
  size_t kept = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (kept > 0 && parts[kept - 1].is_match == parts[i].is_match) {
      parts[kept - 1].end = parts[i].end;
    } else {
      parts[kept++] = parts[i];
    }
  }
  parts.resize(kept);
}

/// Appends a match to the previous part, unless that is also a match.
void merge_with_previous(std::vector<Part>& parts) {
  size_t kept = 0;
  bool previous_is_match = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part part = parts[i];
    if (part.is_match && !previous_is_match && kept > 0) {
      parts[kept - 1].end = part.end;
    } else {
      parts[kept++] = part;
    }
    previous_is_match = part.is_match;
  }
  parts.resize(kept);
}

/// The mirror image of `merge_with_previous`.
void merge_with_next(std::vector<Part>& parts) {
  size_t kept = parts.size();  // parts[kept, …) are done
  bool next_is_match = false;
  for (size_t i = parts.size(); i-- > 0;) {
    const Part part = parts[i];
    if (part.is_match && !next_is_match && kept < parts.size()) {
      parts[kept].begin = part.begin;
    } else {
      parts[--kept] = part;
    }
    next_is_match = part.is_match;
  }
  parts.erase(parts.begin(), parts.begin() + static_cast<ptrdiff_t>(kept));
}

void apply_behavior(SplitBehavior behavior, std::vector<Part>& parts) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.is_match; });
      break;
    case SplitBehavior::kMergedWithPrevious:
      merge_with_previous(parts);
      break;
    case SplitBehavior::kMergedWithNext:
      merge_with_next(parts);
      break;
    case SplitBehavior::kContiguous:
      join_contiguous(parts);
      break;
  }
  std::erase_if(parts, [](const Part& part) { return part.begin == part.end; });
}

/// Splits at the matches of `find_matches`.
class DelimiterSplitter : public Splitter {
 public:
  DelimiterSplitter(SplitBehavior behavior, bool invert) : behavior_(behavior), invert_(invert) {}

  void split(std::string_view text, std::vector<Part>& parts) const final {
    std::vector<ByteSpan> matches;
    find_matches(text, matches);
    parts.clear();
    uint32_t end = 0;
    for (const ByteSpan& match : matches) {
      if (match.begin != end) parts.push_back({end, match.begin, invert_});
      parts.push_back({match.begin, match.end, !invert_});
      end = match.end;
    }
    if (end != text.size()) parts.push_back({end, static_cast<uint32_t>(text.size()), invert_});
    apply_behavior(behavior_, parts);
  }

 protected:
  virtual void find_matches(std::string_view text, std::vector<ByteSpan>& matches) const = 0;

 private:
  SplitBehavior behavior_;
  bool invert_;
};

class RegexSplitter final : public DelimiterSplitter {
 public:
  RegexSplitter(Regex regex, SplitBehavior behavior, bool invert)
      : DelimiterSplitter(behavior, invert), regex_(std::move(regex)) {}

 private:
  void find_matches(std::string_view text, std::vector<ByteSpan>& matches) const override {
    regex_.find_all(text, matches);
  }
  Regex regex_;
};

class LiteralSplitter final : public DelimiterSplitter {
 public:
  LiteralSplitter(std::string literal, SplitBehavior behavior, bool invert)
      : DelimiterSplitter(behavior, invert), literal_(std::move(literal)) {}

 private:
  void find_matches(std::string_view text, std::vector<ByteSpan>& matches) const override {
    for (size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size())) {
      matches.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + literal_.size())});
    }
  }
  std::string literal_;
};

/// Each character of a kind is a match.
template <class IsOfKind>
class CharSplitter final : public DelimiterSplitter {
 public:
  CharSplitter(IsOfKind is_of_kind, SplitBehavior behavior)
      : DelimiterSplitter(behavior, false), is_of_kind_(is_of_kind) {}

 private:
  void find_matches(std::string_view text, std::vector<ByteSpan>& matches) const override {
    for (uint32_t i = 0; i < text.size();) {
      const DecodedChar c = decode_char(text.data() + i);
      if (is_of_kind_(c.code)) matches.push_back({i, i + c.num_bytes});
      i += c.num_bytes;
    }
  }
  IsOfKind is_of_kind_;
};

template <class IsOfKind>
std::unique_ptr<Splitter> make_char_splitter(IsOfKind is_of_kind, SplitBehavior behavior) {
  return std::make_unique<CharSplitter<IsOfKind>>(is_of_kind, behavior);
}

/// Runs of characters of one kind, where kind 0 is left out.
template <class KindOf>
class RunSplitter final : public Splitter {
 public:
  explicit RunSplitter(KindOf kind_of) : kind_of_(kind_of) {}
  void split(std::string_view text, std::vector<Part>& parts) const override {
    parts.clear();
    int last = 0;
    for (uint32_t i = 0; i < text.size();) {
      const DecodedChar c = decode_char(text.data() + i);
      const int kind = kind_of_(c.code);
      if (kind != 0 && kind == last) {
        parts.back().end = i + c.num_bytes;
      } else if (kind != 0) {
        parts.push_back({i, i + c.num_bytes, true});
      }
      last = kind;
      i += c.num_bytes;
    }
  }

 private:
  KindOf kind_of_;
};

class FixedLengthSplitter final : public Splitter {
 public:
  explicit FixedLengthSplitter(size_t length) : length_(length) {}
  void split(std::string_view text, std::vector<Part>& parts) const override {
    parts.clear();
    size_t num_chars = 0;
    for (uint32_t i = 0; i < text.size(); ++num_chars) {
      const uint32_t next = i + decode_char(text.data() + i).num_bytes;
      if (num_chars % length_ == 0) parts.push_back({i, i, true});
      parts.back().end = i = next;
    }
  }

 private:
  size_t length_;
};

class ScriptSplitter final : public Splitter {
 public:
  void split(std::string_view text, std::vector<Part>& parts) const override {
    parts.clear();
    int last = 0;
    for (uint32_t i = 0; i < text.size();) {
      const DecodedChar c = decode_char(text.data() + i);
      const int script = script_of(c.code);
      if (script != 0 && script != last) parts.push_back({i, i, true});
      if (script != 0) last = script;
      i += c.num_bytes;
      if (!parts.empty()) parts.back().end = i;
    }
  }
};

}  // namespace

std::unique_ptr<Splitter> make_regex_splitter(const std::string& pattern, SplitBehavior behavior,
                                              bool invert, const std::string& where) {
  return std::make_unique<RegexSplitter>(Regex(pattern, where), behavior, invert);
}

std::unique_ptr<Splitter> make_pattern_splitter(const std::string& pattern, SplitBehavior behavior,
                                                bool invert, const std::string& where) {
  // Every part of a known pattern is a match, so `Removed` inverted keeps them all, as `Isolated`
  // does.
  const bool keeps_all =
      behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && invert);
  if (keeps_all) {
    if (auto scanner = make_known_scanner(pattern)) return scanner;
  }
  return make_regex_splitter(pattern, behavior, invert, where);
}

std::unique_ptr<Splitter> make_literal_splitter(const std::string& literal, SplitBehavior behavior,
                                                bool invert) {
  // The library compiles the literal to a pattern, and an empty pattern matches between all
  // characters.
  if (literal.empty()) return make_regex_splitter("", behavior, invert, "Split");
  return std::make_unique<LiteralSplitter>(literal, behavior, invert);
}

std::unique_ptr<Splitter> make_digits_splitter(bool individual) {
  const auto is_digit = [](char32_t c) {
    return c < 0x80 ? c >= '0' && c <= '9' : is_rust_numeric(c);
  };
  return make_char_splitter(is_digit,
                            individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

std::unique_ptr<Splitter> make_words_splitter() {
  const auto kind_of = [](char32_t c) {
    if (PropertyTable::get().is_rust_word(c)) return 1;
    return is_white_space(c) ? 0 : 2;
  };
  return std::make_unique<RunSplitter<decltype(kind_of)>>(kind_of);
}

std::unique_ptr<Splitter> make_space_splitter() {
  const auto kind_of = [](char32_t c) { return is_white_space(c) ? 0 : 1; };
  return std::make_unique<RunSplitter<decltype(kind_of)>>(kind_of);
}

std::unique_ptr<Splitter> make_punctuation_splitter(SplitBehavior behavior) {
  return make_char_splitter([](char32_t c) { return PropertyTable::get().is_punctuation(c); },
                            behavior);
}

std::unique_ptr<Splitter> make_fixed_length_splitter(size_t length) {
  return std::make_unique<FixedLengthSplitter>(length);
}

std::unique_ptr<Splitter> make_script_splitter() {
  return std::make_unique<ScriptSplitter>();
}

}  // namespace sftrun::tokenizer
