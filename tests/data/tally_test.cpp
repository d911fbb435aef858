#include "tally.h"

#include <gtest/gtest.h>

namespace sftrun::data {
namespace {

TEST(Tally, CountsAllAndShowsTheFirstThreePlacesOnce) {
  Tally tally;
  tally.add(0, "a:1");
  EXPECT_EQ(tally.places(), "");
  tally.add(2, "a:2");
  tally.add(1, "a:2");
  tally.add(1, "a:5");
  tally.add(1, "b:1");
  EXPECT_EQ(tally.places(), "a:2, a:5, b:1");
  tally.add(3, "b:4");
  EXPECT_EQ(tally.places(), "a:2, a:5, b:1, …");
  EXPECT_EQ(tally.count(), 8);
}

}  // namespace
}  // namespace sftrun::data
