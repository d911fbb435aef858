#include "sftrun/core/units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sftrun {
namespace {

TEST(Units, DurationsCarryOverAtTheEdges) {
  EXPECT_EQ(format_duration(0), "0 ms");
  EXPECT_EQ(format_duration(0.9994), "999 ms");
  EXPECT_EQ(format_duration(0.9996), "1 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.6), "1m 00s");
  EXPECT_EQ(format_duration(3599.6), "1h 00m");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(1e300), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "?");
}

TEST(Units, BytesCarryOverAtTheEdges) {
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  for (const uint64_t unit : {UINT64_C(1) << 20, UINT64_C(1) << 30, UINT64_C(1) << 40}) {
    EXPECT_EQ(format_bytes(unit - 1).substr(0, 5), "1.00 ");
    EXPECT_EQ(format_bytes(unit - unit / 100'000).substr(0, 8), "1023.99 ");
  }
}

TEST(Units, CountsCarryOverAtTheEdges) {
  EXPECT_EQ(format_count(9999), "9999");
  EXPECT_EQ(format_count(999'949), "999.9k");
  EXPECT_EQ(format_count(999'951), "1.0M");
  EXPECT_EQ(format_count(999'949'999), "999.9M");
  EXPECT_EQ(format_count(999'950'001), "1.00B");
}

TEST(Units, NoTextHasFourDigitsBeforeItsUnit) {
  for (double value = 1e4; value < 1e15; value *= 1.00037) {
    const auto count = static_cast<uint64_t>(value);
    EXPECT_EQ(format_count(count).find("1000.0"), std::string::npos) << count;
    EXPECT_EQ(format_bytes(count).find("1024.00"), std::string::npos) << count;
  }
}

TEST(Units, TimesAreWithinWhatClocksCount) {
  EXPECT_EQ(parse_duration_s("1h30m"), 5400);
  EXPECT_EQ(parse_duration_s("3650d"), 3650.0 * 86400);
  for (const char* text :
       {"3651d", "2628000h", "1e300", "109500d", "1e308d1e308d", "inf", "nan", "-1"})
    EXPECT_EQ(parse_duration_s(text), std::nullopt) << text;
}

}  // namespace
}  // namespace sftrun
