#include "sftrun/core/log.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sftrun/core/file.h"
#include "sftrun/core/warnings.h"
#include "support/temporary_directory.h"

namespace sftrun::log {
namespace {

/// The lines that reach stderr, and the file, of a rank that something else started.
class RanksLog : public ::testing::Test {
 protected:
  ~RanksLog() override { configure({}); }

  std::string console(int rank, Level level) {
    configure({.rank = rank, .console = level, .file = directory_ / "rank.log"});
    ::testing::internal::CaptureStderr();
    warn("about the run");
    warn_of_rank(rank, "about itself");
    flush();
    return ::testing::internal::GetCapturedStderr();
  }

  test::TemporaryDirectory directory_;
};

TEST_F(RanksLog, TheMainRankShowsEveryWarning) {
  const std::string shown = console(0, Level::kInfo);
  EXPECT_NE(shown.find("[warning] [rank 0] about the run\n"), std::string::npos) << shown;
  EXPECT_NE(shown.find("[warning] [rank 0] about itself\n"), std::string::npos) << shown;
}

TEST_F(RanksLog, AnotherRankShowsWhatIsAboutItself) {
  const std::string shown = console(1, Level::kError);
  EXPECT_EQ(shown.find("about the run"), std::string::npos) << shown;
  EXPECT_NE(shown.find("[warning] [rank 1] about itself\n"), std::string::npos) << shown;
  const std::string file = read_text_file(directory_ / "rank.log");
  EXPECT_NE(file.find("about the run"), std::string::npos) << file;
  EXPECT_NE(file.find("about itself"), std::string::npos) << file;
}

TEST(Warnings, AreRemembered) {
  warn("remember {}", 17);
  const std::vector<std::string> all = written_warnings();
  EXPECT_NE(std::find(all.begin(), all.end(), "remember 17"), all.end());
}

}  // namespace
}  // namespace sftrun::log
