#include <gtest/gtest.h>

#include <algorithm>

#include "console.h"
#include "line_filter.h"
#include "line_splitter.h"
#include "live_view.h"

namespace sftrun::launch {
namespace {

using Lines = std::vector<std::string>;

std::vector<std::string> lines_of(const std::vector<std::string>& pieces) {
  LineSplitter splitter;
  std::vector<std::string> lines;
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string& piece : pieces) splitter.add(piece, take);
  splitter.finish(take);
  return lines;
}

TEST(LineSplitter, JoinsParts) {
  EXPECT_EQ(lines_of({"one\ntw", "o\r\n\nthree"}), (Lines{"one", "two", "", "three"}));
  EXPECT_EQ(lines_of({}), Lines{});
  EXPECT_EQ(lines_of({std::string(200'000, 'x')}).size(),
            1u);  // one piece: handed over once it is too long
}

const Status kTraining{.phase = Phase::kTraining,
                       .step = 100,
                       .total_steps = 200,
                       .loss = 1.8342,
                       .tokens_per_second = 48210,
                       .eta_s = 200,
                       .memory_bytes = 14207024435,
                       .memory_used_bytes = 13207024435,
                       .gpu_percent = 98,
                       .cpu_percent = 101};

std::vector<RankStatus> ranks(int count) {
  std::vector<RankStatus> all;
  for (int rank = 0; rank < count; ++rank) all.push_back({rank, kTraining});
  return all;
}

TEST(LiveView, OfOneWorkerIsOneLine) {
  EXPECT_EQ(live_view(ranks(1), {.columns = 120}),
            Lines{"training [==========>         ] 100/200  loss 1.8342  3m 20s left  48.2k tok/s  "
                  "12.30 GiB  GPU  98%"});
  EXPECT_EQ(live_view(ranks(1), {.columns = 50}),
            Lines{"training 100/200  loss 1.8342  3m 20s left"});
  EXPECT_EQ(live_view({{0, {.phase = Phase::kLoading}}}, {}), Lines{"loading "});
  EXPECT_EQ(
      live_view({{0, {.phase = Phase::kLoading, .memory_bytes = 1 << 30, .cpu_percent = 150}}}, {}),
      Lines{"loading   1.00 GiB  CPU 150%"});
}

TEST(LiveView, OfSeveralHasATableOfRanks) {
  EXPECT_EQ(live_view(ranks(3), {.columns = 79}),
            (Lines{"training [==========>         ] 100/200  loss 1.8342  3m 20s left  48.2k tok/s",
                   "rank 0  12.30 GiB  GPU  98%   rank 1  12.30 GiB  GPU  98%",
                   "rank 2  12.30 GiB  GPU  98%"}));
  EXPECT_EQ(live_view({{0, {}}, {1, {}}}, {}), Lines{"loading "});  // nothing is known yet
}

TEST(LiveView, LeavesRanksOutThatDoNotFit) {
  const Lines few = live_view(ranks(64), {.columns = 30, .rows = 12});
  EXPECT_EQ(few.size(), 6u);  // half of the terminal
  EXPECT_EQ(few[1], "rank  0  12.30 GiB  GPU  98%");
  EXPECT_EQ(few.back(), "and 60 more ranks");
  EXPECT_EQ(live_view(ranks(64), {.columns = 200, .rows = 60}).size(), 9u);
  EXPECT_EQ(live_view(ranks(64), {.columns = 200, .rows = 3}).size(), 1u);
}

TEST(LiveView, FitsEveryTerminal) {
  for (const int count : {1, 2, 100}) {
    for (int columns = 1; columns < 130; ++columns) {
      for (const int rows : {1, 4, 24}) {
        const Lines lines = live_view(ranks(count), {.columns = columns, .rows = rows});
        EXPECT_LE(lines.size(), static_cast<size_t>(std::max(1, rows / 2)));
        for (const std::string& line : lines) EXPECT_LE(line.size(), static_cast<size_t>(columns));
      }
    }
  }
}

TEST(Console, CountsTheRowsOfBrokenLines) {
  EXPECT_EQ(rows_of({"", "1234", "12345"}, 4), 4);
  EXPECT_EQ(rows_of({"12345678"}, 4), 2);
  EXPECT_EQ(rows_of({}, 4), 0);
}

TEST(StepLine, OnlySingleSteps) {
  EXPECT_TRUE(is_step_line("step 17/200 loss 1.8342 grad_norm 0.912"));
  EXPECT_FALSE(is_step_line("step 17: checkpoint written"));
  EXPECT_FALSE(is_step_line("step 17/200"));
  EXPECT_FALSE(is_step_line("evaluation: step 17/200 loss 1"));
}

TEST(LineFilter, IndentedLinesBelongToTheLineBefore) {
  LineFilter other({.rank = 1, .is_main = false, .show_rank = true}, Stream::kErr);
  EXPECT_EQ(other.show("  lost"), std::nullopt);
  EXPECT_EQ(other.show("Warning: something"), "[rank 1] Warning: something");
  EXPECT_EQ(other.show("  more of it"), "[rank 1]   more of it");
  EXPECT_EQ(other.show("error: fatal"), std::nullopt);  // reported once, at the end
  EXPECT_EQ(other.show("  at   somewhere"), std::nullopt);
}

// Its text is in the rank's log; what it says without the frames is reported as the error.
TEST(LineFilter, TheWorkersErrorIsLeftToTheSupervisor) {
  LineFilter filter({.rank = 0, .is_main = true, .show_rank = false}, Stream::kErr);
  EXPECT_FALSE(filter.show("error: the record cannot be rendered:"));
  EXPECT_FALSE(filter.show("{\"messages\": ["));
  EXPECT_FALSE(filter.show("  fix: correct the record"));
  EXPECT_TRUE(filter.show("[12:03:04.118] [info] [rank 0] another line"));
  EXPECT_TRUE(filter.show("a line of its own"));
}

TEST(LineFilter, StackTracesOfLibTorchAreNotShown) {
  for (const bool is_main : {true, false}) {
    LineFilter filter({.rank = 0, .is_main = is_main, .show_rank = false}, Stream::kErr);
    EXPECT_EQ(filter.show("[12:03:04.118] [debug] CUDA error: an illegal memory access"),
              std::nullopt);
    EXPECT_EQ(filter.show("    CUDA kernel errors might be reported later"), std::nullopt);
    EXPECT_EQ(filter.show("    Exception raised from f at a.cpp:1 (most recent call first):"),
              std::nullopt);
    EXPECT_EQ(filter.show("Exception raised from f at a.cpp:1 (most recent call first):"),
              std::nullopt);
    EXPECT_EQ(filter.show("frame #0: c10::Error::Error() + 0x80 (0x7f in libc10.so)"),
              std::nullopt);
    EXPECT_EQ(filter.show("Warning: something"), "Warning: something");
  }
}

TEST(LineFilter, ReadsTheLevelOfLogLines) {
  LineFilter main({.rank = 0, .is_main = true, .show_rank = true}, Stream::kErr);
  EXPECT_EQ(main.show("[12:03:04.118] [debug] [rank 0] detail"), std::nullopt);
  EXPECT_EQ(main.show("[12:03:04.118] [info] [rank 0] news"),
            "[12:03:04.118] [info] [rank 0] news");
  EXPECT_EQ(main.show("[12:03:04.118] [info] news"), "[rank 0] [12:03:04.118] [info] news");
}

TEST(LineFilter, ShowsWhatTheVerbosityAsksFor) {
  using log::Verbosity;
  const auto shown = [](Verbosity verbosity, bool is_main, const std::string& line) {
    LineFilter filter({.rank = 1, .is_main = is_main, .show_rank = true, .verbosity = verbosity},
                      Stream::kErr);
    return filter.show(line).has_value();
  };
  const std::string debug = "[12:03:04.118] [debug] [rank 1] detail",
                    info = "[12:03:04.118] [info] [rank 1] news",
                    warning = "[12:03:04.118] [warning] [rank 1] waits",
                    error = "[12:03:04.118] [error] [rank 1] lost", other = "a library's line";
  for (const bool is_main : {true, false}) {
    for (const Verbosity any : {Verbosity::kQuiet, Verbosity::kNormal, Verbosity::kVerbose}) {
      EXPECT_TRUE(shown(any, is_main, warning));
      EXPECT_TRUE(shown(any, is_main, error));
    }
    EXPECT_FALSE(shown(Verbosity::kQuiet, is_main, info));
    EXPECT_FALSE(shown(Verbosity::kQuiet, is_main, other));
    EXPECT_EQ(shown(Verbosity::kNormal, is_main, info), is_main);
    EXPECT_FALSE(shown(Verbosity::kNormal, is_main, debug));
    EXPECT_TRUE(shown(Verbosity::kVerbose, is_main, info));
    EXPECT_EQ(shown(Verbosity::kVerbose, is_main, debug), is_main);
  }
}

TEST(LineFilter, WarningsAboutTheRunAreShownOnce) {
  const std::string about_run = "[12:03:04.118] [warning] about the run",
                    about_rank = "[12:03:04.118] [warning] [rank 1] waits";
  WarningsShown shown({"known before"});
  LineFilter main({.rank = 0, .is_main = true, .show_rank = true, .warnings = &shown},
                  Stream::kErr);
  LineFilter other({.rank = 1, .is_main = false, .show_rank = true, .warnings = &shown},
                   Stream::kErr);
  EXPECT_EQ(other.show(about_run), about_run);  // no rank: the others come upon it, too
  EXPECT_EQ(main.show(about_run), std::nullopt);
  EXPECT_EQ(main.show("[12:03:04.118] [warning] known before"), std::nullopt);
  EXPECT_EQ(other.show(about_rank), about_rank);
  EXPECT_EQ(other.show(about_rank), about_rank);
  EXPECT_EQ(other.show("[12:03:04.118] [error] lost"), "[rank 1] [12:03:04.118] [error] lost");
}

}  // namespace
}  // namespace sftrun::launch
