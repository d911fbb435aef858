#include "sftrun/train/stragglers.h"

#include <gtest/gtest.h>

namespace sftrun::train {
namespace {

constexpr int kUntilNamed = StragglerWatch::kWindowSteps * StragglerWatch::kWindows;

/// What the watch says in `steps` equal steps.
std::vector<std::string> said(StragglerWatch& watch, const std::vector<WorkSeconds>& work,
                              int steps) {
  std::vector<std::string> all;
  for (int step = 0; step < steps; ++step)
    for (std::string& text : watch.add(work)) all.push_back(std::move(text));
  return all;
}

// Data loader, forward, backward, optimizer, between them.
constexpr WorkSeconds kUsual = {0.01, 0.05, 0.1, 0.01, 0};
constexpr WorkSeconds kSlowLoader = {0.2, 0.05, 0.1, 0.01, 0};

TEST(Stragglers, ASlowRankIsNamedOnceWithItsFactorAndPart) {
  StragglerWatch watch;
  EXPECT_TRUE(said(watch, {kUsual, kUsual, kSlowLoader, kUsual}, kUntilNamed - 1).empty());
  const auto texts = said(watch, {kUsual, kUsual, kSlowLoader, kUsual}, 1 + 10 * kUntilNamed);
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_EQ(texts[0],
            "rank 2 is slow: its own work takes 2.1 times that of the other ranks (360 ms instead "
            "of 170 ms per step), most of the difference in the data loader; the others wait for "
            "it in every step");
}

TEST(Stragglers, OneOfTwoRanks) {
  StragglerWatch watch;
  const auto texts = said(watch, {kSlowLoader, kUsual}, kUntilNamed);
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_EQ(texts[0].find("rank 0 is slow"), 0U) << texts[0];
}

TEST(Stragglers, NobodyIsNamedWhereRanksTakeTurns) {
  StragglerWatch watch;
  for (int turn = 0; turn < 10; ++turn) {
    EXPECT_TRUE(said(watch, {kUsual, kSlowLoader}, StragglerWatch::kWindowSteps).empty());
    EXPECT_TRUE(said(watch, {kSlowLoader, kUsual}, StragglerWatch::kWindowSteps).empty());
  }
}

TEST(Stragglers, ShortStepsAreNoise) {
  StragglerWatch watch;
  const WorkSeconds quick = {0, 0.001, 0.001, 0, 0}, slower = {0, 0.004, 0.004, 0, 0};
  EXPECT_TRUE(said(watch, {quick, slower}, 3 * kUntilNamed).empty());
}

TEST(Stragglers, OneRankIsComparedWithNobody) {
  StragglerWatch watch;
  EXPECT_TRUE(said(watch, {kSlowLoader}, 3 * kUntilNamed).empty());
}

}  // namespace
}  // namespace sftrun::train
