#include "sftrun/core/user_path.h"

#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

namespace sftrun {
namespace {

/// HOME as long as the test runs.
class UserPathTest : public ::testing::Test {
 protected:
  UserPathTest() {
    if (const char* home = std::getenv("HOME")) home_ = home;
    ::setenv("HOME", "/home/somebody/", 1);
  }
  ~UserPathTest() override { ::setenv("HOME", home_.c_str(), 1); }
  std::string home_;
};

TEST_F(UserPathTest, TildeIsTheHomeDirectory) {
  EXPECT_EQ(expanded_home("~"), "/home/somebody");
  EXPECT_EQ(expanded_home("~/a/b"), "/home/somebody/a/b");
  for (const char* path : {"", "a", "/a/~", "a/~/b", "./~", "~nobody-of-this-name/x"})
    EXPECT_EQ(expanded_home(path), path);
  ::setenv("HOME", "/", 1);
  EXPECT_EQ(expanded_home("~/a"), "/a");
}

TEST_F(UserPathTest, OfAnotherUserOrWithoutHomeTheSystemSays) {
  const passwd* user = ::getpwuid(::getuid());
  ASSERT_NE(user, nullptr);
  const std::string name = user->pw_name, home = user->pw_dir;
  EXPECT_EQ(expanded_home("~" + name + "/x"), home + "/x");
  ::unsetenv("HOME");
  EXPECT_EQ(expanded_home("~/x"), home + "/x");
}

TEST(NoneWord, IsWhatYamlAndPythonWrite) {
  for (const char* text : {"none", "None", "NONE", "null", "Null", "NULL", "~"})
    EXPECT_TRUE(is_none_word(text)) << text;
  for (const char* text : {"", "no", "nil", "./none", "none/x", " none", "nOne"})
    EXPECT_FALSE(is_none_word(text)) << text;
}

}  // namespace
}  // namespace sftrun
