#include "sftrun/core/short_quotes.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun {
namespace {

std::string filled(const std::string& text, size_t num_bytes) {
  std::string all;
  while (all.size() < num_bytes) all += text;
  return all;
}

constexpr size_t kMuch = 16 << 10;

TEST(ShortQuotes, LeaveUsualMessages) {
  const std::string sentences = filled("a sentence of our own that is not a quote. ", 4000);
  EXPECT_EQ(with_short_quotes(sentences), sentences);
  const std::string quotes = filled("`a key` is \"no number\", ", 4000);
  EXPECT_EQ(with_short_quotes(quotes), quotes);
  const std::string blanks = "a" + std::string(300, ' ') + "\n\n b\t";
  EXPECT_EQ(with_short_quotes(blanks), blanks);
}

TEST(VisibleControls, AreWhatATerminalWouldObey) {
  EXPECT_EQ(with_visible_controls("a\x1b[31m\r\x07 b\x7f"), "a\\x1b[31m\\x0d\\x07 b\\x7f");
  EXPECT_EQ(with_visible_controls("\xC2\x9B 31m, \x9B"), "\\x9b 31m, \\x9b");
  const std::string usual = "line\n  at\tthe Ärger、🙂 of \xFF";
  EXPECT_EQ(with_visible_controls(usual), usual);
  const DataError error("no such file: \x1b[2J", "\x1b]0;title\x07.json", "rename \x1b");
  EXPECT_STREQ(
      error.what(),
      "error: no such file: \\x1b[2J\n  at   \\x1b]0;title\\x07.json\n  fix: rename \\x1b");
  EXPECT_EQ(with_visible_controls(error.message()), error.message()) << "once is enough";
}

TEST(ShortQuotes, ShortenWords) {
  EXPECT_EQ(with_short_quotes("`" + std::string(kMuch, '7') + "`, which is too large"),
            "`" + std::string(200, '7') + "… (16384 bytes)`, which is too large");
  EXPECT_EQ(with_short_quotes("key " + std::string(kMuch, '7')),
            "key " + std::string(200, '7') + "… (16384 bytes)");
  EXPECT_EQ(with_short_quotes(std::string(kMuch, '`')), excerpt(std::string(kMuch, '`')));
}

TEST(ShortQuotes, ShortenQuotedTexts) {
  const std::string text = filled("many words ", kMuch), lines = filled("many\nlines ", kMuch);
  EXPECT_EQ(with_short_quotes("`" + text + "` is not known"),
            "`" + excerpt(text) + "` is not known");
  EXPECT_EQ(with_short_quotes("\"" + text + "\" is not"), "\"" + excerpt(text) + "\" is not");
  EXPECT_EQ(with_short_quotes("`" + lines + "` is not"), "`" + excerpt(lines) + "` is not");
}

TEST(ShortQuotes, KeepExcerptsAsTheyAre) {
  for (const std::string& text : {filled("words ", kMuch), std::string(kMuch, 'x')}) {
    const std::string message = "the key `train.lora." + excerpt(text) + "` is not known";
    EXPECT_EQ(with_short_quotes(message), message);
  }
  const std::string own = std::string(1000, 'x') + "… (1 byte)";
  EXPECT_LT(with_short_quotes(own).size(), 250U);
}

/// NAME_MAX and PATH_MAX of Linux (limits.h)
TEST(ShortQuotes, KeepPaths) {
  const std::string path = "/" + filled(std::string(200, 'n') + "/", 3900);
  for (const std::string& message :
       {path + " is missing", "`" + path + "`: no", "--model=" + path, "fix: `a " + path + " b`",
        "`" + path + "with blanks " + path.substr(0, 100) + "`"})
    EXPECT_EQ(with_short_quotes(message), message);
  EXPECT_LT(with_short_quotes(filled("/name", kMuch)).size(), 300U);
  EXPECT_LT(with_short_quotes("/" + std::string(300, 'n')).size(), 300U);
  const std::string base64 = "QUJD" + filled("/a+b", 2000);
  EXPECT_LT(with_short_quotes(base64).size(), 300U);
  const std::string relative = filled("runs/", 1000) + "x.jsonl: line 7";
  EXPECT_EQ(with_short_quotes_after_path(relative), relative);
  EXPECT_LT(with_short_quotes_after_path("a.json: " + std::string(kMuch, 'k')).size(), 300U);
  const std::string words = filled("many words ", 1000);
  EXPECT_EQ(with_short_quotes_after_path(words), excerpt(words));
}

TEST(ShownPath, IsWholeIfItCanBeAPath) {
  const std::string path = filled("a folder/", 3000), words = filled("many words ", kMuch);
  EXPECT_EQ(shown_path(path), path);
  EXPECT_EQ(shown_path(words), excerpt(words));
  EXPECT_EQ(shown_path("no/" + words.substr(0, 1000)), excerpt("no/" + words.substr(0, 1000)));
}

TEST(ShortQuotes, AreThoseOfErrors) {
  const std::string word(kMuch, 'w');
  const std::string text = DataError(word, "a.json: " + word, "leave " + word + " out").what();
  EXPECT_EQ(text.find(std::string(201, 'w')), std::string::npos);
  EXPECT_NE(text.find(std::string(200, 'w') + "… (16384 bytes) out"), std::string::npos);
}

}  // namespace
}  // namespace sftrun
