#include "sftrun/core/input_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun {
namespace {

namespace fs = std::filesystem;

TEST(InputFiles, AreReadInParts) {
  const test::TemporaryDirectory dir;
  write_file_atomically(dir / "a", "0123456789");
  const InputFile file(dir / "a");
  EXPECT_EQ(file.size(), 10U);
  EXPECT_EQ(file.read(0, 10), "0123456789");
  EXPECT_EQ(file.read(3, 4), "3456");
  EXPECT_EQ(file.read(10, 0), "");
  std::vector<std::byte> two(2);
  file.read(8, two);
  EXPECT_EQ(two, (std::vector<std::byte>{std::byte{'8'}, std::byte{'9'}}));
}

// A mapping of such a file would end the process.
TEST(InputFiles, ThatBecomeShorterGiveAnError) {
  const test::TemporaryDirectory dir;
  write_file_atomically(dir / "a", std::string(20'000, 'x'));
  const InputFile file(dir / "a");
  fs::resize_file(dir / "a", 100);
  EXPECT_EQ(file.read(0, 100).size(), 100U);
  EXPECT_EQ(file.status().st_size, 100);
  for (const uint64_t begin : {uint64_t{0}, uint64_t{50}, uint64_t{19'000}})
    test::expect_error([&] { file.read(begin, 1000); }, {"became shorter while it was read", "a"});
}

TEST(InputFiles, BytesBehindTheEndAreNotAllocated) {
  const test::TemporaryDirectory dir;
  write_file_atomically(dir / "a", "0123456789");
  const InputFile file(dir / "a");
  for (const auto& [begin, count] : {std::pair<uint64_t, uint64_t>(0, UINT64_MAX),
                                     {UINT64_MAX, 1},
                                     {11, 0},
                                     {5, uint64_t{1} << 60}})
    test::expect_error([&] { file.read(begin, count); }, {"became shorter"});
}

TEST(InputFiles, OtherThanRegularFilesAreRefused) {
  const test::TemporaryDirectory dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  test::expect_error([&] { InputFile(dir / "pipe"); }, {"is a named pipe"});
  test::expect_error([&] { InputFile(dir / "missing"); }, {"missing", "No such file"});
  test::expect_error([&] { InputFile(dir.path()); }, {"Is a directory"});
}

}  // namespace
}  // namespace sftrun
