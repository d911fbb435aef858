#include "judgement_balance.h"

#include <gtest/gtest.h>

namespace sftrun::data {
namespace {

TEST(JudgementBalance, CountsAreShownOfJudgedExamples) {
  EXPECT_EQ(judgement_counts({.num_desirable = 3, .num_undesirable = 1}),
            "3 desirable, 1 undesirable");
  EXPECT_EQ(judgement_counts({.num_examples = 4}), "");
}

TEST(JudgementBalance, OneJudgementAloneIsWarnedOf) {
  EXPECT_FALSE(one_sided_warning({.num_desirable = 3, .num_undesirable = 1}));
  EXPECT_FALSE(one_sided_warning({.num_examples = 4})) << "they are not judged";
  const auto good = one_sided_warning({.num_desirable = 3}),
             bad = one_sided_warning({.num_undesirable = 2});
  ASSERT_TRUE(good && bad);
  EXPECT_NE(good->find("all 3 examples are desirable"), std::string::npos) << *good;
  EXPECT_NE(good->find("add undesirable ones"), std::string::npos) << *good;
  EXPECT_NE(bad->find("all 2 examples are undesirable"), std::string::npos) << *bad;
}

}  // namespace
}  // namespace sftrun::data
