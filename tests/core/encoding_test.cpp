#include "sftrun/core/encoding.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun {
namespace {

using namespace std::string_view_literals;

TEST(Encoding, IsNamedByItsMarkOrItsZeros) {
  EXPECT_EQ(wide_encoding("\xFF\xFEm\0"sv), "UTF-16");
  EXPECT_EQ(wide_encoding("\xFE\xFF\0m"sv), "UTF-16");
  EXPECT_EQ(wide_encoding("\xFF\xFE\0\0m\0\0\0"sv), "UTF-32");
  EXPECT_EQ(wide_encoding("\0\0\xFE\xFF\0\0\0m"sv), "UTF-32");
  EXPECT_EQ(wide_encoding("{\0\"\0"sv), "UTF-16");
  EXPECT_EQ(wide_encoding("\0{\0\""sv), "UTF-16");
  EXPECT_EQ(wide_encoding("{\0\0\0\"\0\0\0"sv), "UTF-32");
  EXPECT_EQ(wide_encoding("\0\0\0{\0\0\0\""sv), "UTF-32");
  for (const std::string_view text :
       {""sv, "m"sv, "\xEF\xBB\xBFmodel"sv, "model"sv, "ab\0c"sv, "\xFFx"sv, "\0\0\0\0"sv})
    EXPECT_EQ(wide_encoding(text), "") << text;
}

TEST(Encoding, OfAFileIsRefusedWithTheCommandThatConvertsIt) {
  const test::TemporaryDirectory directory;
  const std::filesystem::path file = directory / "a b.json";
  std::ofstream(file, std::ios::binary) << "\xFF\xFE{\0}\0"sv;
  test::expect_error([&] { read_utf8_file(file); },
                     {"the file is UTF-16, not UTF-8", "at   " + file.string(),
                      "iconv -f UTF-16 -t UTF-8 '" + file.string() + "' > NEW"});
  std::ofstream(file, std::ios::binary) << "{\n\"a\": \"caf\xE9\"}"sv;
  test::expect_error([&] { read_utf8_file(file); },
                     {"invalid UTF-8", "at   " + file.string() + ":2", "iconv -f latin1"});
}

}  // namespace
}  // namespace sftrun
