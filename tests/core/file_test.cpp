#include "sftrun/core/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/core/overwrite_file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun {
namespace {

namespace fs = std::filesystem;
using test::expect_error;

/// While it lives, no file of this process may grow past `num_bytes`: what a full disk looks like.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t num_bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{num_bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = SIG_DFL;
};

size_t entries(const fs::path& directory) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

// To open a pipe waits for somebody who writes; to read a device may never end.
TEST(SpecialFiles, AreRefusedUnopened) {
  const test::TemporaryDirectory dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", dir / "device");
  for (const auto& [name, kind] : {std::pair("pipe", "is a named pipe, not a regular file"),
                                   std::pair("device", "is a device, not a regular file")}) {
    expect_error([&] { read_text_file(dir / name); }, {kind, name, "fix: write its contents"});
    expect_error([&] { MappedFile(dir / name); }, {kind, name});
  }
  expect_error([&] { read_text_file(dir.path()); }, {"Is a directory", "name a file"});
  expect_error([&] { MappedFile(dir.path()); }, {"Is a directory", "name a file"});
  write_file_atomically(dir / "file", "text");
  require_no_special_file(dir / "file");
  require_no_special_file(dir.path());
  require_no_special_file(dir / "none");
}

// A pipe without a reader: to open it for writing would wait for ever.
TEST(SpecialFiles, AreNotWritten) {
  const test::TemporaryDirectory dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/null", dir / "device");
  fs::create_symlink("pipe", dir / "link");
  make_directories(dir / "folder");
  for (const auto& [name, kind] : {std::pair("pipe", "is a named pipe, not a regular file"),
                                   std::pair("link", "is a named pipe, not a regular file"),
                                   std::pair("device", "is a device, not a regular file"),
                                   std::pair("folder", "Is a directory")}) {
    const fs::path path = dir / name;
    for (const auto& write : std::initializer_list<std::function<void()>>{
             [&] { LineFile file(path); }, [&] { write_file_atomically(path, "x"); },
             [&] { overwrite_file(path, "x"); }})
      expect_error<DeviceError>(write, {"cannot write: ", kind, name, "fix: remove or rename it"});
  }
  EXPECT_EQ(entries(dir.path()), 4U);
  EXPECT_TRUE(fs::is_fifo(dir / "pipe"));
}

TEST(OpenFile, APipeIsNoLock) {
  const test::TemporaryDirectory dir;
  ASSERT_EQ(::mkfifo((dir / "lock").c_str(), 0600), 0);
  const OpenedFile opened = open_file(dir / "lock", O_RDWR | O_CREAT);
  EXPECT_EQ(opened.fd, -1);
  EXPECT_EQ(opened.error, 0);
  EXPECT_EQ(opened.reason, "is a named pipe, not a regular file");
}

TEST(OpenFile, ItWaitsAsUsualOnceItIsOpen) {
  const test::TemporaryDirectory dir;
  const int fd = open_for_writing(dir / "f", O_WRONLY | O_CREAT | O_APPEND, 0600);
  EXPECT_EQ(::fcntl(fd, F_GETFL) & (O_NONBLOCK | O_APPEND), O_APPEND);
  EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
  ::close(fd);
}

TEST(AtomicFile, IsThereAsAWholeOrNotAtAll) {
  const test::TemporaryDirectory dir;
  {
    AtomicFile file(dir / "f");
    file.write("abc", 3);
    EXPECT_FALSE(fs::exists(dir / "f"));
  }
  EXPECT_EQ(entries(dir.path()), 0U) << "what was not committed leaves nothing";
  write_file_atomically(dir / "f", "first");
  {
    AtomicFile file(dir / "f");
    file.write("second", 6);
    EXPECT_EQ(read_text_file(dir / "f"), "first");
    file.commit();
  }
  EXPECT_EQ(read_text_file(dir / "f"), "second");
  EXPECT_EQ(entries(dir.path()), 1U);
}

TEST(AtomicFile, AFullDiskLeavesTheOldFileAndNothingElse) {
  const test::TemporaryDirectory dir;
  write_file_atomically(dir / "f", "old");
  {
    const FileSizeLimit limit(10);
    expect_error<DeviceError>([&] { write_file_atomically(dir / "f", std::string(4096, 'x')); },
                              {"cannot write", "f"});
  }
  EXPECT_EQ(read_text_file(dir / "f"), "old");
  EXPECT_EQ(entries(dir.path()), 1U);
}

TEST(AtomicFile, AFullDiskIsAnErrorThatSaysSo) {
  AtomicFile file("/dev/full", SpecialFile::kAllowed);
  expect_error<DeviceError>([&] { file.write("x"); },
                            {"cannot write", "/dev/full", "No space left", "free"});
}

TEST(LineFile, ALimitOnSizesIsAnErrorThatSaysSo) {
  const test::TemporaryDirectory dir;
  LineFile file(dir / "f");
  const FileSizeLimit limit(0);
  expect_error<DeviceError>([&] { file.append("x"); }, {"cannot write", "/f", "ulimit -f"});
}

TEST(LineFile, LinesFollowEachOther) {
  const test::TemporaryDirectory dir;
  LineFile(dir / "f").append("a");
  LineFile(dir / "f").append("b");
  EXPECT_EQ(read_text_file(dir / "f"), "a\nb\n");
}

TEST(MappedFile, ReleasedPagesAreReadAgain) {
  const test::TemporaryDirectory dir;
  std::string content(1 << 20, 'a');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i % 251);
  write_file_atomically(dir / "f", content);
  const MappedFile file(dir / "f");
  const auto same = [&] {
    return std::memcmp(file.bytes().data(), content.data(), content.size()) == 0;
  };
  EXPECT_TRUE(same());
  file.release(file.bytes().subspan(5000, 500'000));
  file.release({});
  EXPECT_TRUE(same());
  std::vector<std::byte> others(1 << 16, std::byte{7});  // not the mapping's: left alone
  file.release(others);
  EXPECT_EQ(std::count(others.begin(), others.end(), std::byte{7}), 1 << 16);
}

TEST(RemoveEntries, TakesThosePrefixedAndNoOthers) {
  const test::TemporaryDirectory dir;
  write_file_atomically(dir / ".x-1", "");
  fs::create_directories(dir / ".x-2" / "deep");
  write_file_atomically(dir / "x", "");
  remove_entries(dir.path(), ".x-");
  EXPECT_EQ(entries(dir.path()), 1U);
  remove_entries(dir / "missing", "");
}

// As root a rename over /dev/null would take the device's place.
TEST(OverwriteFile, StaysWithinTheSpaceOfTheFile) {
  const test::TemporaryDirectory dir;
  write_file_atomically(dir / "a", "a longer text");
  overwrite_file(dir / "a", "short");
  EXPECT_EQ(read_text_file(dir / "a"), "short");
  const std::string more(std::filesystem::file_size(dir / "a") + 800, 'x');  // of one block
  overwrite_file(dir / "a", more);
  EXPECT_EQ(read_text_file(dir / "a"), more);
  EXPECT_THROW(overwrite_file(dir / "a", std::string(1 << 20, 'y')), DeviceError);
  EXPECT_EQ(read_text_file(dir / "a"), more);
  EXPECT_THROW(overwrite_file(dir / "none", ""), DeviceError);
}

TEST(AtomicFile, DevicesAndPipesAreWrittenAsTheyAre) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  write_file_atomically(pipe, "text", SpecialFile::kAllowed);
  char got[8] = {};
  EXPECT_EQ(::read(reader, got, sizeof got), 4);
  EXPECT_STREQ(got, "text");
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  write_file_atomically("/dev/null", "text", SpecialFile::kAllowed);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(NewDirectory, IsThereAsAWholeOrNotAtAll) {
  const test::TemporaryDirectory directory;
  const auto target = directory / "model";
  const auto fill = [](const std::filesystem::path& to) {
    make_directories(to);
    write_file_atomically(to / "a", "b");
  };
  EXPECT_THROW(write_new_directory(target, "the model",
                                   [&](const std::filesystem::path& to) {
                                     fill(to);
                                     throw DeviceError("cannot write");
                                   }),
               DeviceError);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  write_new_directory(target, "the model", fill);
  EXPECT_EQ(read_text_file(target / "a"), "b");
}

TEST(NewDirectory, ReplacesAnotherOnlyWhereItIsAskedTo) {
  const test::TemporaryDirectory directory;
  const auto target = directory / "model";
  make_directories(target);
  write_file_atomically(target / "old", "text");
  const auto fill = [](const std::filesystem::path& to) {
    make_directories(to);
    write_file_atomically(to / "new", "text");
  };
  EXPECT_THROW(write_new_directory(target, "the model", fill), DeviceError);
  EXPECT_TRUE(std::filesystem::exists(target / "old"));
  write_new_directory(target, "the model", fill, Existing::kReplace);
  EXPECT_TRUE(std::filesystem::exists(target / "new"));
  EXPECT_FALSE(std::filesystem::exists(target / "old"));
  EXPECT_THROW(write_new_directory(
                   target, "the model", [](const auto&) { throw DeviceError("cannot write"); },
                   Existing::kReplace),
               DeviceError);
  EXPECT_TRUE(std::filesystem::exists(target / "new"));
  const std::filesystem::directory_iterator entries(directory.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);  // nothing is left beside it
}

TEST(File, ANameIsNotCutAtANul) {
  const test::TemporaryDirectory directory;
  write_file_atomically(directory / "a", "text");
  const std::filesystem::path name = (directory / "a").string() + std::string("\0b", 2);
  for (const auto& use : std::initializer_list<std::function<void()>>{
           [&] { read_text_file(name); }, [&] { MappedFile mapped(name); },
           [&] { write_file_atomically(name, "x"); }, [&] { make_directories(name); },
           [&] { LineFile lines(name); }})
    test::expect_error(use, {"the file's name has a NUL byte", (directory / "a").string()});
  EXPECT_FALSE(exists_or_matches(name));
  EXPECT_TRUE(expand_glob(name.string() + "*").empty());
}

}  // namespace
}  // namespace sftrun
