#include "sftrun/core/strings.h"

#include <gtest/gtest.h>

namespace sftrun {
namespace {

/// As POSIX' shell reads them (Shell Command Language, 2.2 Quoting).
TEST(ShellWord, IsOneWordOfAShell) {
  EXPECT_EQ(shell_word("models/base-nf4"), "models/base-nf4");
  EXPECT_EQ(shell_word("owner/name@v2:x=1,2%+"), "owner/name@v2:x=1,2%+");
  EXPECT_EQ(shell_word("sp ace/my model"), "'sp ace/my model'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("$HOME/*"), "'$HOME/*'");
  EXPECT_EQ(shell_word("~/models"), "'~/models'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Strings, JoinsWithAnotherWordBeforeTheLast) {
  EXPECT_EQ(joined(std::vector<std::string>{}, " or "), "");
  EXPECT_EQ(joined(std::vector<std::string>{"a"}, " or "), "a");
  EXPECT_EQ(joined(std::vector<std::string>{"a", "b", "c"}, " or "), "a, b or c");
}

}  // namespace
}  // namespace sftrun
