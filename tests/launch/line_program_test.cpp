#include "sftrun/launch/line_program.h"

#include <gtest/gtest.h>

#include <vector>

namespace sftrun::launch {
namespace {

using End = LineAnswers::End;
constexpr double kTimeoutS = 20;

LineProgram program(const std::string& command) {
  return LineProgram({.command = command, .guard = SFTRUN_TEST_WORKER});
}

TEST(LineProgram, AnswersLinesInOrderWhileItRuns) {
  LineProgram counts = program("n=0; while read -r line; do n=$((n + 1)); echo \"$n $line\"; done");
  EXPECT_EQ(counts.ask(std::vector<std::string>{"a", "b"}, kTimeoutS).lines,
            (std::vector<std::string>{"1 a", "2 b"}));
  const LineAnswers more = counts.ask(std::vector<std::string>{"c"}, kTimeoutS);
  EXPECT_EQ(more.end, End::kComplete);
  EXPECT_EQ(more.lines, (std::vector<std::string>{"3 c"}));
  EXPECT_TRUE(counts.ask({}, kTimeoutS).lines.empty());
  EXPECT_EQ(counts.finish().end, End::kComplete);
  EXPECT_EQ(counts.ask(std::vector<std::string>{"d"}, kTimeoutS).lines,
            (std::vector<std::string>{"1 d"}))
      << "started again";
}

TEST(LineProgram, KeepsTheLastLinesOfItsErrors) {
  LineProgram fails = program("read -r line; seq 1 2000 >&2; exit 9");
  const LineAnswers none = fails.ask(std::vector<std::string>{"a"}, kTimeoutS);
  EXPECT_EQ(none.end, End::kEnded);
  EXPECT_EQ(none.what, "ended with exit code 9 after 0 of 1 answers");
  EXPECT_EQ(none.last_errors, "1993\n1994\n1995\n1996\n1997\n1998\n1999\n2000");
}

TEST(LineProgram, GivesEachLineOfItsErrors) {
  std::vector<std::string> lines;
  LineProgram warns(
      {.command = "while read -r line; do printf 'a\\nb' >&2; echo 1; printf 'c\\n' >&2; done",
       .on_error_line = [&](std::string_view line) { lines.emplace_back(line); },
       .guard = SFTRUN_TEST_WORKER});
  EXPECT_EQ(warns.ask(std::vector<std::string>{"x"}, kTimeoutS).end, End::kComplete);
  EXPECT_EQ(warns.finish().end, End::kComplete);
  EXPECT_EQ(lines, (std::vector<std::string>{"a", "bc"}));
}

TEST(LineProgram, OneThatDiesBetweenTwoBatchesHasFailed) {
  LineProgram dies = program("read -r line; echo 1; exit 4");
  EXPECT_EQ(dies.ask(std::vector<std::string>{"a"}, kTimeoutS).end, End::kComplete);
  LineAnswers next = dies.ask(std::vector<std::string>{"a"}, kTimeoutS);
  EXPECT_EQ(next.end, End::kEnded);
  EXPECT_EQ(next.what, "ended with exit code 4 after 0 of 1 answers");
  next = dies.ask(std::vector<std::string>{"a"}, kTimeoutS);
  EXPECT_EQ(next.end, End::kComplete) << "another process";
}

TEST(LineProgram, OneThatIsJustEndingIsStartedAgain) {
  LineProgram one_each = program("read -r line; echo \"$line\"; sleep 0.5");
  for (const std::string line : {"a", "b"}) {
    const LineAnswers said = one_each.ask(std::vector<std::string>{line}, kTimeoutS);
    EXPECT_EQ(said.end, End::kComplete) << said.what;
    EXPECT_EQ(said.lines, (std::vector<std::string>{line}));
  }
  LineProgram never = program("read -r line; exit 0");
  EXPECT_EQ(never.ask(std::vector<std::string>{"a"}, kTimeoutS).what,
            "ended with exit code 0 after 0 of 1 answers")
      << "it has answered nothing before";
}

TEST(LineProgram, ALineWithoutAnEndIsNotKeptForever) {
  LineProgram endless = program("read -r line; tr '\\0' x < /dev/zero");
  const LineAnswers none = endless.ask(std::vector<std::string>{"a"}, kTimeoutS);
  EXPECT_EQ(none.end, End::kTooMany);
  EXPECT_NE(none.what.find("wrote a line of more than"), std::string::npos) << none.what;
}

TEST(LineProgram, OneThatIgnoresTheEndOfItsInputIsEnded) {
  LineProgram stays = program("read -r line; echo 1; trap '' TERM; sleep 1000");
  EXPECT_EQ(stays.ask(std::vector<std::string>{"a"}, kTimeoutS).lines.size(), 1U);
  EXPECT_EQ(stays.finish().end, End::kComplete);
}

}  // namespace
}  // namespace sftrun::launch
