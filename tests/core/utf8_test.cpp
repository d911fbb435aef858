#include "sftrun/core/utf8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace sftrun {
namespace {

TEST(Utf8, EveryCodePointIsEncodedAndDecoded) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code == 0xD800) code = 0xE000;  // surrogates are not characters
    std::string text = "a";
    append_utf8(text, code);
    ASSERT_TRUE(is_valid_utf8(text)) << code;
    const DecodedChar fast = decode_char(text.data() + 1), checked = decode_char_at(text, 1),
                      last = decode_last_char(text);
    ASSERT_EQ(uint32_t{fast.code}, code);
    ASSERT_EQ(uint32_t{checked.code}, code);
    ASSERT_EQ(uint32_t{last.code}, code);
    ASSERT_EQ(fast.num_bytes, text.size() - 1);
    ASSERT_EQ(checked.num_bytes, text.size() - 1);
  }
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8("\xC3\xBC and \xE2\x82\xAC"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("ab\xFFz"), 2U);
  EXPECT_EQ(find_invalid_utf8("\xC0\xAF"), 0U);          // longer than needed
  EXPECT_EQ(find_invalid_utf8("a\xED\xA0\x80"), 1U);     // a surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0U);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("\xC3\xBC\xE2\x82"), 2U);  // cut off
}

TEST(Utf8, InvalidBytesAreCodePointsOfTheirOwn) {
  const std::string text = "\xED\xA0\x80";
  EXPECT_EQ(uint32_t{decode_char_at(text, 0).code}, 0xEDU);
  EXPECT_EQ(decode_char_at(text, 0).num_bytes, 1U);
  EXPECT_EQ(decode_char_at("\xE2\x82", 0).num_bytes, 1U);
}

TEST(Utf8, PrefixEndsBetweenCharacters) {
  const std::string text =
      "a\xE2\x82\xAC"
      "b";  // a, a euro sign, b
  EXPECT_EQ(utf8_prefix(text, 5), text);
  EXPECT_EQ(utf8_prefix(text, 4), "a\xE2\x82\xAC");
  EXPECT_EQ(utf8_prefix(text, 3), "a");
  EXPECT_EQ(utf8_prefix(text, 1), "a");
  EXPECT_EQ(utf8_prefix(text, 0), "");
}

TEST(Utf8, LossyTextIsThatOfRust) {
  EXPECT_EQ(utf8_lossy("ok"), "ok");
  EXPECT_EQ(utf8_lossy("a\xF0\x9F\x98z\xFF"), "a\xEF\xBF\xBDz\xEF\xBF\xBD");
}

TEST(Utf8, ACharacterStreamCountsAsTheLossyText) {
  const std::string parts[] = {"a",    "\xE6", "\x97", "i",    "\xF0\x9F", "\x8E",
                               "\x89", "\x97", "\x97", "\xFF", "z"};
  CharacterStream stream;
  std::string bytes;
  for (const std::string& part : parts) {
    stream.add(part);
    bytes += part;
    const std::string text = utf8_lossy(bytes);
    EXPECT_EQ(stream.num_chars(),
              static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
                return !is_continuation_byte(byte);
              })));
  }
  EXPECT_EQ(stream.num_chars(), 8U);
}

}  // namespace
}  // namespace sftrun
