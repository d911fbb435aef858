#include <gtest/gtest.h>

#include "line_filter.h"
#include "line_splitter.h"
#include "progress_line.h"

namespace sftrun::launch {
namespace {

std::vector<std::string> lines_of(const std::vector<std::string>& pieces) {
  LineSplitter splitter;
  std::vector<std::string> lines;
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string& piece : pieces) splitter.add(piece, take);
  splitter.finish(take);
  return lines;
}

TEST(LineSplitter, JoinsParts) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines_of({"one\ntw", "o\r\n\nthree"}), (Lines{"one", "two", "", "three"}));
  EXPECT_EQ(lines_of({}), Lines{});
  EXPECT_EQ(lines_of({std::string(200'000, 'x')}).size(),
            1u);  // one piece: handed over once it is too long
}

TEST(ProgressLine, FitsTheTerminal) {
  const Status status{.phase = Phase::kTraining,
                      .step = 100,
                      .total_steps = 200,
                      .loss = 1.8342,
                      .tokens_per_second = 48210,
                      .eta_s = 200,
                      .memory_bytes = 13207024435};
  EXPECT_EQ(
      progress_line(status, 120),
      "training [==========>         ] 100/200  loss 1.8342  3m 20s left  48.2k tok/s  12.30 GiB");
  EXPECT_EQ(progress_line(status, 50), "training 100/200  loss 1.8342  3m 20s left");
  for (int columns = 1; columns < 120; ++columns) {
    EXPECT_LE(progress_line(status, columns).size(), static_cast<size_t>(columns));
  }
  EXPECT_EQ(progress_line({.phase = Phase::kLoading}, 80), "loading ");
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
