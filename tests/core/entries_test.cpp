#include "sftrun/core/entries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

TEST(Presence, IsNoExceptionForAnyPath) {
  const test::TemporaryDirectory folder;
  write_file_atomically(folder / "a", "text");
  fs::create_symlink("circle", folder / "circle");
  EXPECT_TRUE(leads_to_file(folder / "a"));
  EXPECT_TRUE(is_plain_file(folder / "a"));
  EXPECT_TRUE(is_folder(folder / "."));
  EXPECT_TRUE(has_entry(folder / "circle"));
  for (const std::string& name : {"none"s, "circle"s, "a/b"s, std::string(5000, 'n'), "a\0.txt"s}) {
    EXPECT_FALSE(leads_to_file(folder / name)) << name.substr(0, 20);
    EXPECT_FALSE(is_folder(folder / name)) << name.substr(0, 20);
    EXPECT_FALSE(is_plain_file(folder / name)) << name.substr(0, 20);
  }
  EXPECT_FALSE(has_entry(folder / "a\0.txt"s)) << "the system would look for a";
  EXPECT_EQ(absolute_path(""), "");
}

TEST(Entries, NameThePathWhereTheyFail) {
  const test::TemporaryDirectory folder;
  write_file_atomically(folder / "a", "text");
  EXPECT_EQ(entries_of(folder / "."), std::vector<fs::path>{folder / "." / "a"});
  EXPECT_EQ(bytes_of_file(folder / "a"), 4U);
  test::expect_error<DataError>([&] { entries_of(folder / "a"); },
                                {"cannot read the folder", "/a"});
  test::expect_error<DataError>([&] { bytes_of_file(folder / "b"); }, {"cannot read file", "/b"});
  test::expect_error<DataError>([&] { bytes_of_file(folder / "a\0b"s); }, {"cannot read file"});
  test::expect_error<DeviceError>([&] { move_entry(folder / "b", folder / "c"); },
                                  {"cannot rename", "/b"});
  test::expect_error<DeviceError>([&] { remove_entry(folder / "a" / "b"); }, {"cannot remove"});
  EXPECT_TRUE(readable_entries_of(folder / "a").empty());
  remove_entry(folder / "b");
  remove_entry(folder / "a");
  EXPECT_TRUE(entries_of(folder / ".").empty());
}

}  // namespace
}  // namespace sftrun
