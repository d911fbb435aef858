#include "metrics_tail.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "support/temporary_directory.h"

namespace sftrun::track {
namespace {

class MetricsTailTest : public testing::Test {
 protected:
  void append(const std::string& text) const { std::ofstream(file_, std::ios::app) << text; }
  static std::vector<int64_t> steps(const std::vector<TrackedLine>& lines) {
    std::vector<int64_t> steps;
    for (const TrackedLine& line : lines) steps.push_back(line.step);
    return steps;
  }
  using Steps = std::vector<int64_t>;

  const test::TemporaryDirectory folder_;
  const std::filesystem::path file_ = folder_ / "metrics.jsonl";
};

TEST_F(MetricsTailTest, ReadsCompleteLinesOnce) {
  MetricsTail tail(file_);
  EXPECT_TRUE(tail.read().empty());
  append("{\"step\": 1}\n{\"step\": 2");
  EXPECT_EQ(steps(tail.read()), Steps({1}));
  EXPECT_TRUE(tail.read().empty());
  append("}\nno line\n{\"step\": 3}\n");
  EXPECT_EQ(steps(tail.read()), Steps({2, 3}));
}

TEST_F(MetricsTailTest, BeginsAgainInAFileThatIsShorterOrAnotherOne) {
  MetricsTail tail(file_);
  append("{\"step\": 1}\n{\"step\": 2}\n");
  EXPECT_EQ(steps(tail.read()), Steps({1, 2}));
  std::filesystem::resize_file(file_, 12);
  EXPECT_EQ(steps(tail.read()), Steps({1}));
  std::ofstream(folder_ / "new") << "{\"step\": 1}\n{\"step\": 7}\n{\"step\": 8}\n";
  std::filesystem::rename(folder_ / "new", file_);
  EXPECT_EQ(steps(tail.read()), Steps({1, 7, 8}));
}

TEST_F(MetricsTailTest, TakesLinesThatAreLongerThanItsBuffer) {
  MetricsTail tail(file_);
  append("{\"step\": 1, \"text\": \"" + std::string(300'000, 'x') + "\"}\n");
  EXPECT_EQ(steps(tail.read()), Steps({1}));
}

TEST_F(MetricsTailTest, ReadsLongFilesInParts) {
  MetricsTail tail(file_);
  constexpr int64_t kLines = 20'000;
  std::string text;
  for (int64_t step = 1; step <= kLines; ++step)
    text += "{\"step\": " + std::to_string(step) + "}\n";
  append(text);
  int64_t last = 0;
  for (std::vector<TrackedLine> lines; !(lines = tail.read()).empty();) {
    EXPECT_LT(lines.size(), 10'000U);
    for (const TrackedLine& line : lines) EXPECT_EQ(line.step, ++last);
  }
  EXPECT_EQ(last, kLines);
}

}  // namespace
}  // namespace sftrun::track
