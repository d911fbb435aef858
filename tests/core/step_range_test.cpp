#include "sftrun/core/step_range.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "support/expect_error.h"

namespace sftrun {
namespace {

TEST(StepRange, IsAStepOrARange) {
  EXPECT_TRUE(parse_step_range("", "--profile").is_empty());
  const StepRange one = parse_step_range("5", "--profile"), three = parse_step_range("5-7", "");
  EXPECT_EQ(one.first, 5);
  EXPECT_EQ(one.last, 5);
  EXPECT_EQ(three.first, 5);
  EXPECT_EQ(three.last, 7);
  for (const char* text :
       {"0", "-3", "7-5", "5-", "a", "5-7-9", "1.5", " 5", "99999999999999999999"})
    test::expect_error<ConfigError>([&] { parse_step_range(text, "--profile"); },
                                    {text, "--profile", "numbered from 1"});
}

}  // namespace
}  // namespace sftrun
