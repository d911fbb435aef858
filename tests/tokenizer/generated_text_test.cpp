#include "sftrun/tokenizer/generated_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/core/utf8.h"
#include "support/test_data.h"

namespace sftrun::tokenizer {
namespace {

Tokenizer tokenizer_of(const std::string& name) {
  const std::filesystem::path file = test::kData / "text" / (name + ".tokenizer.json");
  return Tokenizer::from_json(read_text_file(file), file.string());
}

struct Shown {
  std::string text, settled_before_end;
  bool stopped = false;
};

/// What is shown of a text that is generated token by token.
Shown generate(const Tokenizer& tokenizer, const std::string& text,
               const std::vector<std::string>& stops) {
  GeneratedText generated(tokenizer, stops);
  Shown shown;
  for (const TokenId token : tokenizer.encode(text, /*add_special_tokens=*/false)) {
    shown.stopped = !generated.add(token);
    const std::string settled(generated.settled());
    EXPECT_TRUE(settled.starts_with(shown.settled_before_end)) << settled;
    if (shown.stopped) break;
    shown.settled_before_end = settled;
  }
  shown.text = generated.text();
  EXPECT_TRUE(shown.text.starts_with(shown.settled_before_end)) << shown.settled_before_end;
  return shown;
}

TEST(GeneratedText, PartsOfACharacterAreAtItsPlace) {
  const Tokenizer tokenizer = tokenizer_of("gpt2");
  GeneratedText generated(tokenizer, {});
  std::vector<TokenId> tokens;
  size_t num_parts = 0;
  for (const TokenId token : tokenizer.encode("x 日 👍🏽 the", /*add_special_tokens=*/false)) {
    std::string bytes;
    for (const TokenId one : tokens) bytes += tokenizer.token_bytes(one);
    const size_t end = std::min(find_invalid_utf8(bytes), bytes.size());
    num_parts += end < bytes.size() ? 1 : 0;
    const auto count = std::count_if(bytes.begin(), bytes.begin() + static_cast<long>(end),
                                     [](char byte) { return !is_continuation_byte(byte); });
    EXPECT_EQ(generated.place_of(token), static_cast<size_t>(count)) << bytes;
    generated.add(token);
    tokens.push_back(token);
  }
  EXPECT_GE(num_parts, 2U);
}

// Bytes that are no character are characters of their own in the text.
TEST(GeneratedText, ATokenBehindAnIncompleteCharacterIsBehindItsReplacement) {
  for (const char* name : {"gpt2", "llama2"}) {
    const Tokenizer tokenizer = tokenizer_of(name);
    GeneratedText generated(tokenizer, {});
    const auto thumb = tokenizer.encode("👍", /*add_special_tokens=*/false);
    const TokenId letter = tokenizer.encode("xx", /*add_special_tokens=*/false).back();
    const auto part = std::find_if(thumb.begin(), thumb.end(), [&](TokenId token) {
      return !is_valid_utf8(tokenizer.token_bytes(token));
    });
    ASSERT_LT(std::next(part), thumb.end()) << name;
    generated.add(letter);
    generated.add(*part);
    const size_t before = generated.place_of(letter);
    EXPECT_EQ(before, 1 + generated.place_of(*std::next(part))) << name;
    generated.add(letter);
    const size_t at = generated.text().rfind(tokenizer.token_bytes(letter));
    const auto num_before =
        std::count_if(generated.text().begin(), generated.text().begin() + static_cast<long>(at),
                      [](char byte) { return !is_continuation_byte(byte); });
    EXPECT_EQ(before, static_cast<size_t>(num_before)) << name;
  }
}

class GeneratedTexts : public ::testing::TestWithParam<const char*> {};

// Whatever the stop text is and wherever its tokens end: the text ends before it, and nothing of it
// was shown.
TEST_P(GeneratedTexts, EndBeforeAnyStopText) {
  const Tokenizer tokenizer = tokenizer_of(GetParam());
  const std::string text = "one two, three wörld and 5 € or 👍🏽 then ababac</s";
  ASSERT_EQ(generate(tokenizer, text, {}).text, text);
  for (size_t begin = 0; begin < text.size(); ++begin) {
    for (size_t size = 1; size <= 12 && begin + size <= text.size(); ++size) {
      const std::string stop = text.substr(begin, size);
      const bool splits_a_character =
          (text[begin] & 0xC0) == 0x80 ||
          (begin + size < text.size() && (text[begin + size] & 0xC0) == 0x80);
      if (splits_a_character) continue;
      SCOPED_TRACE(stop);
      const Shown shown = generate(tokenizer, text, {"never there", stop});
      EXPECT_TRUE(shown.stopped);
      EXPECT_EQ(shown.text, text.substr(0, text.find(stop)));
    }
  }
}

TEST_P(GeneratedTexts, WithholdPossibleBeginningsOfStopTexts) {
  const Tokenizer tokenizer = tokenizer_of(GetParam());
  const Shown shown = generate(tokenizer, "one two, three", {"threefold"});
  EXPECT_FALSE(shown.stopped);
  EXPECT_EQ(shown.text, "one two, three");
  EXPECT_EQ(shown.settled_before_end, "one two, ");
  EXPECT_EQ(generate(tokenizer, "one two", {"three"}).settled_before_end, "one two");
  EXPECT_EQ(generate(tokenizer, "aab", {"ab"}).text, "a");
  EXPECT_EQ(generate(tokenizer, "one two", {"two", "ne"}).text, "o");
}
INSTANTIATE_TEST_SUITE_P(Kinds, GeneratedTexts, ::testing::Values("gpt2", "llama2", "gemma"));

// The text is that of all tokens together, whichever they are, though each is decoded a few times only.
TEST_P(GeneratedTexts, TakeTheSameTimeForEachToken) {
  const Tokenizer tokenizer = tokenizer_of(GetParam());
  constexpr size_t kNumTokens = 1000, kMaxDecodings = 150;
  std::mt19937 random(7);
  std::uniform_int_distribution<TokenId> any(0, static_cast<TokenId>(tokenizer.vocab_size()) - 1);
  const std::vector<TokenId> words = tokenizer.encode(
      " one two, three wörld and 5 € or 👍🏽 then", /*add_special_tokens=*/false);
  std::vector<TokenId> tokens;
  GeneratedText generated(tokenizer, {std::string(kMaxStopBytes, 'a')});
  while (tokens.size() < kNumTokens) {
    const bool is_random = (tokens.size() / 100) % 2 == 1;
    tokens.push_back(is_random ? any(random) : words[tokens.size() % words.size()]);
    EXPECT_TRUE(generated.add(tokens.back()));
    if (tokens.size() % 7 > 0) continue;
    const std::string whole = tokenizer.decode(tokens, /*skip_special_tokens=*/true);
    ASSERT_EQ(generated.text(), whole) << tokens.size();
    ASSERT_TRUE(whole.starts_with(generated.settled())) << tokens.size();
  }
  EXPECT_LT(generated.num_decoded(), kMaxDecodings * kNumTokens);
}

TEST(GeneratedText, FindsStopTextsInWhatIsNotDecodedAgain) {
  const Tokenizer tokenizer = tokenizer_of("gpt2");
  std::string text;
  for (int i = 0; i < 400; ++i) text += "ab ";
  const std::string stop = text + "c";  // withheld to its end
  ASSERT_LE(stop.size(), 2 * kMaxStopBytes);
  const Shown shown = generate(tokenizer, "x " + text + "c", {stop});
  EXPECT_TRUE(shown.stopped);
  EXPECT_EQ(shown.text, "x ");
  EXPECT_EQ(shown.settled_before_end, "x ");
  EXPECT_EQ(generate(tokenizer, "x " + text + "d", {stop}).text, "x " + text + "d");
}

TEST(GeneratedText, WithholdsIncompleteCharacters) {
  const Tokenizer tokenizer = tokenizer_of("gpt2");
  const std::vector<TokenId> tokens = tokenizer.encode("a👍🏽", false);
  GeneratedText generated(tokenizer, {});
  ASSERT_GT(tokens.size(), 3U);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(generated.add(tokens[i]));
  EXPECT_EQ(generated.settled(), "a");
  EXPECT_EQ(generated.text(), "a\xef\xbf\xbd");  // where generation ends there
}

}  // namespace
}  // namespace sftrun::tokenizer
