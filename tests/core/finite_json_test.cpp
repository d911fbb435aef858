#include "sftrun/core/finite_json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sftrun {
namespace {

using Json = nlohmann::ordered_json;

TEST(FiniteJson, NamesTheFirstNumberThatIsNot) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(find_not_finite(Json::parse(R"({"a": [1.5, "NaN", null, {"b": 1e300}]})"), "x"));
  EXPECT_EQ(find_not_finite(kInfinity, "x"), "x");
  EXPECT_EQ(find_not_finite({{"a", 1}, {"b", {{"c", {1, "d", std::nan("")}}}}}, "x"), "x.b.c[2]");
  EXPECT_EQ(find_not_finite({{"a", -kInfinity}, {"b", kInfinity}}, ""), "a");
}

}  // namespace
}  // namespace sftrun
