#include "sftrun/core/optional_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun {
namespace {

namespace fs = std::filesystem;

TEST(OptionalFile, IsThereOrNot) {
  const test::TemporaryDirectory folder;
  EXPECT_FALSE(has_optional_file(folder / "a.json"));
  EXPECT_FALSE(has_optional_file(folder / std::string("a\0.json", 7)));
  EXPECT_FALSE(has_optional_file(folder / std::string(5000, 'a')));
  write_file_atomically(folder / "a.json", "{}");
  fs::create_symlink("a.json", folder / "link.json");
  fs::create_symlink("link.json", folder / "second.json");
  for (const char* name : {"a.json", "link.json", "second.json"})
    EXPECT_TRUE(has_optional_file(folder / name)) << name;
  EXPECT_FALSE(has_optional_file(folder / "a.json" / "b.json"));
}

TEST(OptionalFile, ALinkThatLeadsNowhereIsAnError) {
  const test::TemporaryDirectory folder;
  fs::create_symlink("../../blobs/ab12", folder / "a.json");
  fs::create_symlink("b.json", folder / "b.json");
  test::expect_error([&] { has_optional_file(folder / "a.json"); },
                     {"a broken symbolic link to ../../blobs/ab12", (folder / "a.json").string(),
                      "download or copy the file again, or remove the link"});
  test::expect_error([&] { has_optional_file(folder / "b.json"); },
                     {"a circular symbolic link to b.json", "remove the link"});
}

}  // namespace
}  // namespace sftrun
