#include "splitters.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "normal_forms.h"
#include "onig_regex.h"
#include "sftrun/core/error.h"
#include "sftrun/core/utf8.h"
#include "support/expect_error.h"
#include "unicode.h"

namespace sftrun::tokenizer {
namespace {

using Strings = std::vector<std::string>;

Strings split(const Splitter& splitter, const std::string& text) {
  std::vector<Part> parts;
  splitter.split(text, parts);
  Strings out;
  for (const Part& part : parts) out.push_back(text.substr(part.begin, part.end - part.begin));
  return out;
}

Strings split(const std::string& pattern, SplitBehavior behavior, bool invert,
              const std::string& text) {
  return split(*make_regex_splitter(pattern, behavior, invert, "test"), text);
}

// The library's own examples (tokenizers, normalizer.rs).
TEST(Split, Behaviors) {
  const std::string text = "The-final--countdown";
  EXPECT_EQ(split("-", SplitBehavior::kRemoved, false, text),
            Strings({"The", "final", "countdown"}));
  EXPECT_EQ(split("-", SplitBehavior::kIsolated, false, text),
            Strings({"The", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split("-", SplitBehavior::kMergedWithPrevious, false, text),
            Strings({"The-", "final-", "-", "countdown"}));
  EXPECT_EQ(split("-", SplitBehavior::kMergedWithNext, false, text),
            Strings({"The", "-final", "-", "-countdown"}));
  EXPECT_EQ(split("-", SplitBehavior::kContiguous, false, text),
            Strings({"The", "-", "final", "--", "countdown"}));
  EXPECT_EQ(split("-", SplitBehavior::kRemoved, true, text), Strings({"-", "-", "-"}));
}

TEST(Split, LiteralsAndEmptyMatches) {
  EXPECT_EQ(split(*make_literal_splitter("a.", SplitBehavior::kIsolated, false), "xa.aba."),
            Strings({"x", "a.", "ab", "a."}));
  EXPECT_EQ(split(*make_literal_splitter("", SplitBehavior::kIsolated, false), "aé\n"),
            Strings({"a", "é", "\n"}));
  EXPECT_EQ(split("x*", SplitBehavior::kIsolated, false, "axxb"), Strings({"a", "xx", "b"}));
}

TEST(Split, Digits) {
  EXPECT_EQ(split(*make_digits_splitter(true), "a12٣½"), Strings({"a", "1", "2", "٣", "½"}));
  EXPECT_EQ(split(*make_digits_splitter(false), "a12٣½b"), Strings({"a", "12٣½", "b"}));
  EXPECT_EQ(split(*make_digits_splitter(false), "\U00011DE5x"),
            Strings({"\U00011DE5", "x"}));  // a digit of Unicode 17
}

/// Characters of every class the patterns tell apart, in runs.
std::string random_text(std::mt19937& random) {
  static const Strings kAlphabet = {
      "a",          "Z",      "é",          "中",     "ǅ",      "ʰ",          "s",      "t",
      "re",         "LL",     "'",          "'",      "'s",     "'S",         "'ſ",     "'ve",
      "1",          "2",      "٣",          "Ⅷ",      "½",      "\U00010D40", " ",      " ",
      " ",          "\t",     "\n",         "\r",     "\r\n",   "\v",         "\u0085", "\u00A0",
      "\u1680",     "\u2003", "\u2028",     "\u3000", "\u200B", "\uFEFF",     ".",      "!",
      "_",          "-",      "€",          "̈",       "\u0301", "🦊",       "\u200D", "\x01",
      "\U0001E030", "\uA7CB", "\U00010FFFF"};
  std::string out;
  const size_t length = random() % 14;
  for (size_t i = 0; i < length; ++i) {
    const std::string& piece = kAlphabet[random() % kAlphabet.size()];
    for (size_t repeat = 1 + (random() % 4 == 0 ? random() % 4 : 0); repeat > 0; --repeat)
      out += piece;
  }
  return out;
}

TEST(Scanners, EqualOnigurumaOnTheirPatterns) {
  std::mt19937 random(20240607);
  for (const char* pattern : {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern}) {
    const auto scanner = make_known_scanner(pattern);
    const auto regex = make_regex_splitter(pattern, SplitBehavior::kIsolated, false, "test");
    ASSERT_TRUE(scanner);
    for (int i = 0; i < 10000; ++i) {
      const std::string text = random_text(random);
      EXPECT_EQ(split(*scanner, text), split(*regex, text)) << pattern << "\n" << text;
    }
  }
  EXPECT_EQ(make_known_scanner("x"), nullptr);
}

TEST(Regex, StepsOfASearchAreBounded) {
  std::vector<ByteSpan> matches;
  const std::string text(50'000, 'a');  // within the limit of one place, beyond that of all
  test::expect_error([&] { Regex("(?:a|b)*[^ab]", "test").find_all(text, matches); },
                     {"matching the tokenizer's pattern `(?:a|b)*[^ab]` failed"});
  Regex("a*", "test").find_all(text, matches);
  EXPECT_EQ(matches.size(), 1U);
}

TEST(Regex, HasTheTablesProperties) {
  // U+1C89 is a letter since Unicode 16, which the system's oniguruma may not know.
  EXPECT_EQ(split(R"(\p{L}+)", SplitBehavior::kIsolated, false, "a\u1C89-"),
            Strings({"a\u1C89", "-"}));
  EXPECT_EQ(split(R"([^\p{Letter}\d]+)", SplitBehavior::kRemoved, false, "a\u1C89-5"),
            Strings({"a\u1C89", "5"}));
  EXPECT_EQ(split(R"(\P{L}|\p{^Lu})", SplitBehavior::kRemoved, false, "A-b"), Strings({"A"}));
  EXPECT_EQ(split(R"([\p{Han}ab]+)", SplitBehavior::kRemoved, true, "中a국b"),
            Strings({"中a", "b"}));
  EXPECT_EQ(split(R"(\w+)", SplitBehavior::kRemoved, true, "a_1²-é"),
            Strings({"a_1²", "é"}));  // as oniguruma, ² too
  EXPECT_EQ(expand_properties(R"(\p{Greek}[[:alpha:]\n\\p]\d)").substr(0, 26),
            R"(\p{Greek}[[:alpha:]\n\\p][)");
  EXPECT_THROW(Regex("[", "test"), DataError);
  EXPECT_THROW(Regex(std::string(8'000, '(') + std::string(8'000, ')'), "test"), DataError);
}

TEST(Unicode, LossyTextAsRusts) {
  EXPECT_EQ(utf8_lossy("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(utf8_lossy("\xE2\x82"), "\uFFFD");  // the start of a character
  EXPECT_EQ(utf8_lossy("\xF0\x9F\x92x"), "\uFFFDx");
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(utf8_lossy("\xC0\xAF\xF5"), "\uFFFD\uFFFD\uFFFD");  // too long, too large
  EXPECT_EQ(find_invalid_utf8("é中🦊"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("ab\x80"), 2u);
}

NormalizedText nfc(std::string_view text) {
  return normalize(NormalForm::kNfc, text, true);
}

TEST(Nfc, ComposesReordersAndTracksSources) {
  EXPECT_EQ(nfc("e\u0301").text, "é");
  EXPECT_EQ(nfc("\u0323e\u0307\u0323x").text,
            "\u0323\u1EB9\u0307x");  // dot below before dot above
  EXPECT_EQ(nfc("\u1112\u1161\u11AB").text, "한");
  EXPECT_EQ(nfc("\u212B\u0958").text, "Å\u0915\u093C");  // a singleton; an excluded composition
  EXPECT_TRUE(is_surely(NormalForm::kNfc, "é한中 plain"));
  EXPECT_FALSE(is_surely(NormalForm::kNfc, "e\u0301"));
  const NormalizedText text = nfc("ae\u0301b");
  EXPECT_EQ(text.sources, (std::vector<ByteSpan>{{0, 1}, {1, 4}, {1, 4}, {4, 5}}));
}

}  // namespace
}  // namespace sftrun::tokenizer
