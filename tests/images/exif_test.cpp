#include "exif.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace sftrun::images {
namespace {

using std::literals::operator""s;

int exif_orientation(const std::string& exif) {
  return orientation_of({.exif = bytes_of(exif), .xmp = {}});
}
int orientation_in_xmp(const std::string& xmp) {
  return orientation_of({.exif = {}, .xmp = bytes_of(xmp)});
}

const std::string kHead = "II*\0\x08\0\0\0"s;
const std::string kSix = "\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"s;  // tag 274, short, 1 value, 6
const std::string kEight = "\x12\x01\x03\0\x01\0\0\0\x08\0\0\0"s;

TEST(ExifOrientation, IsReadWithAndWithoutItsPrefix) {
  const std::string exif = kHead + "\x01\0"s + kSix;
  EXPECT_EQ(exif_orientation(exif), 6);
  EXPECT_EQ(exif_orientation("Exif\0\0"s + exif), 6);
  EXPECT_EQ(exif_orientation("Exif\0\0Exif\0\0"s + exif), 6);
  EXPECT_EQ(exif_orientation("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x05\0\0"s), 5);
}

TEST(ExifOrientation, IsOneWhereThereIsNone) {
  EXPECT_EQ(orientation_of({}), 1);
  for (const std::string& exif :
       {""s, "I"s, "II*\0"s, kHead, kHead + "\x01"s, kHead + "\0\0"s, "not a TIFF file"s,
        "II*\0\xFF\xFF\xFF\xFF"s, kHead + "\xFF\xFF"s, kHead + "\x01\0"s + kSix.substr(0, 11)})
    EXPECT_EQ(exif_orientation(exif), 1);
}

TEST(ExifOrientation, FirstOfTwoEntriesCounts) {
  EXPECT_EQ(exif_orientation(kHead + "\x02\0"s + kEight + kSix), 8);
}

TEST(ExifOrientation, ValueOutsideTheDataIsPassedOverOrEndsTheDirectory) {
  const std::string much = "\x0F\x01\x02\0\xFF\xFF\xFF\0\x10\0\0\0"s,
                    beyond = "\x0F\x01\x02\0\x05\0\0\0\xF0\0\0\0"s;
  EXPECT_EQ(exif_orientation(kHead + "\x02\0"s + much + kSix), 6);    // longer than the data
  EXPECT_EQ(exif_orientation(kHead + "\x02\0"s + beyond + kSix), 1);  // partly outside
}

TEST(ExifOrientation, OtherNumbersAndTypesCountAsOne) {
  for (const char value : {'\0', '\x09', '\x7F'}) {
    std::string entry = kSix;
    entry[8] = value;
    EXPECT_EQ(exif_orientation(kHead + "\x01\0"s + entry), 1);
  }
  std::string text = kSix;
  text[2] = 2;  // ASCII
  EXPECT_EQ(exif_orientation(kHead + "\x01\0"s + text), 1);
}

TEST(ExifOrientation, XmpCountsWhereExifHasNone) {
  EXPECT_EQ(orientation_in_xmp("<x tiff:Orientation=\"3\"/>"), 3);
  EXPECT_EQ(orientation_in_xmp("<tiff:Orientation>7</tiff:Orientation>"), 7);
  EXPECT_EQ(orientation_in_xmp("tiff:Orientation=x tiff:Orientation=\"4\""), 4);
  EXPECT_EQ(orientation_in_xmp("<x tiff:Orientation=\"9\"/>"), 1);
  EXPECT_EQ(orientation_in_xmp("tiff:Orientation=\""), 1);
  const std::string xmp = "<x tiff:Orientation=\"3\"/>", six = kHead + "\x01\0"s + kSix,
                    none = kHead + "\0\0"s;
  EXPECT_EQ(orientation_of({bytes_of(six), bytes_of(xmp)}), 6);
  EXPECT_EQ(orientation_of({bytes_of(none), bytes_of(xmp)}), 3);
}

TEST(ExifOrientation, AnyBytesGiveAnOrientation) {
  std::mt19937 random(11);
  const std::string exif = kHead + "\x03\0"s + kEight + kSix + kSix;
  for (int i = 0; i < 20000; ++i) {
    std::string changed = exif.substr(0, random() % (exif.size() + 1));
    for (char& value : changed)
      if (random() % 8 == 0) value = static_cast<char>(random());
    changed.shrink_to_fit();
    const int orientation = exif_orientation(changed);
    EXPECT_TRUE(orientation >= 1 && orientation <= 8);
  }
}

}  // namespace
}  // namespace sftrun::images
