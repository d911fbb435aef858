#include "sftrun/core/verbosity.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "sftrun/core/log.h"

namespace sftrun::log {
namespace {

class Verbosities : public ::testing::Test {
 protected:
  ~Verbosities() override { ::unsetenv(kVerbosityVariable); }
  static void ask_for(const char* word) { ::setenv(kVerbosityVariable, word, 1); }
};

std::string shown(Level console) {
  configure({.console = console});
  ::testing::internal::CaptureStderr();
  debug("detail");
  info("news");
  warn("warning");
  flush();
  configure({});
  const std::string text = ::testing::internal::GetCapturedStderr();
  std::string found;
  for (const char* word : {"detail", "news", "warning"})
    if (text.find(fmt::format("] {}\n", word)) != std::string::npos)
      found += (found.empty() ? "" : " ") + std::string(word);
  return found;
}

TEST_F(Verbosities, IsNormalUnlessAskedFor) {
  EXPECT_EQ(verbosity(), Verbosity::kNormal);
  ask_for("quiet");
  EXPECT_EQ(verbosity(), Verbosity::kQuiet);
  ask_for("verbose");
  EXPECT_EQ(verbosity(), Verbosity::kVerbose);
  ask_for("loud");  // the front end refuses it
  EXPECT_EQ(verbosity(), Verbosity::kNormal);
  EXPECT_EQ(parse_verbosity("Quiet"), std::nullopt);
}

TEST_F(Verbosities, DecideWhatTheConsoleShows) {
  EXPECT_EQ(shown(Level::kInfo), "news warning");
  ask_for("quiet");
  EXPECT_EQ(shown(Level::kInfo), "warning");
  ask_for("verbose");
  EXPECT_EQ(shown(Level::kInfo), "detail news warning");
}

TEST_F(Verbosities, DoNotChangeALevelThatTheProgramNeeds) {
  ask_for("quiet");
  EXPECT_EQ(shown(Level::kDebug), "detail news warning");
  ask_for("verbose");
  EXPECT_EQ(shown(Level::kError), "");
}

}  // namespace
}  // namespace sftrun::log
