#include "../../src/data/tokenizing_progress.h"

#include <gtest/gtest.h>

#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

using namespace std::chrono_literals;

TEST(TokenizingProgresses, ShowProgressAndRemainingTime) {
  EXPECT_EQ(TokenizingProgress::line("chat.jsonl", 0.25, 3000, 5),
            "chat.jsonl: 25% tokenized (3000 records), about 15 s left");
  EXPECT_EQ(TokenizingProgress::line("a", 0.5, 1'200'000, 90),
            "a: 50% tokenized (1.2M records), about 1m 30s left");
  EXPECT_EQ(TokenizingProgress::line("a", 1.5, 10, 90),
            "a: 100% tokenized (10 records), about 0 ms left");
}

std::string logged(std::chrono::duration<double> every) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path file = folder / "log";
  log::configure({.console = log::Level::kOff, .file = file});
  TokenizingProgress progress("chat.jsonl", every);
  progress.update(0.1, 10);
  progress.update(0.2, 20);
  log::flush();
  log::configure({.console = log::Level::kOff});
  return read_text_file(file);
}

TEST(TokenizingProgresses, AreLoggedAtIntervals) {
  const std::string all = logged(0s);
  EXPECT_NE(all.find("data: chat.jsonl: 10% tokenized (10 records)"), std::string::npos) << all;
  EXPECT_NE(all.find("data: chat.jsonl: 20% tokenized (20 records)"), std::string::npos) << all;
  EXPECT_EQ(logged(1h).find("tokenised"), std::string::npos);
}

}  // namespace
}  // namespace sftrun::data
