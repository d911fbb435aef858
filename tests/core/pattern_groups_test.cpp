#include "pattern_groups.h"

#include <gtest/gtest.h>

#include "pattern_cursor.h"

namespace sftrun::pattern {
namespace {

std::string problem_of(const PatternGroups& groups, size_t number) {
  try {
    groups.width_of(number);
    return {};
  } catch (const SyntaxProblem& problem) {
    return problem.text;
  }
}

TEST(PatternGroups, ReferencesNameGroupsThatAreClosed) {
  PatternGroups groups;
  groups.name_next("word");
  const size_t outer = groups.open();
  EXPECT_EQ(problem_of(groups, outer), "cannot refer to an open group");
  groups.close(outer, {2, kUnbounded});
  EXPECT_EQ(groups.width_of("word").min, 2U);
  EXPECT_EQ(problem_of(groups, outer + 1), "invalid group reference 2");
  EXPECT_THROW(groups.name_next("word"), SyntaxProblem);
}

TEST(PatternGroups, ALookBehindCannotReferToItsOwnGroups) {
  PatternGroups groups;
  groups.close(groups.open(), {1, 1});
  const auto before = groups.enter_lookbehind();
  groups.close(groups.open(), {1, 1});
  EXPECT_EQ(problem_of(groups, 1), "");
  EXPECT_EQ(problem_of(groups, 2),
            "cannot refer to group defined in the same lookbehind subpattern");
  groups.leave_lookbehind(before);
  EXPECT_EQ(problem_of(groups, 2), "");
}

TEST(Width, StopsAtUnbounded) {
  EXPECT_EQ(product({2, kUnbounded}, {3, 4}).min, 6U);
  EXPECT_EQ(product({2, kUnbounded}, {3, 4}).max, kUnbounded);
  EXPECT_EQ(sum({1, kUnbounded}, {1, 1}).max, kUnbounded);
}

}  // namespace
}  // namespace sftrun::pattern
