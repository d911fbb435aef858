#include "sftrun/core/file_hash.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <thread>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/xxh3.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun {
namespace {
namespace fs = std::filesystem;

/// Values of the reference implementation (xxhsum 0.8.1).
TEST(Xxh3, IsTheReferences) {
  EXPECT_EQ(xxh3_64({}), 0x2d06800538d394c2ULL);
  EXPECT_EQ(xxh3_128(std::string_view()), "99aa06d3014798d86001c324468d497f");
}

TEST(Xxh3, BlockChecksumsDoNotDependOnHowBytesCome) {
  const std::string bytes(3 * BlockChecksums::kBytes + 5, 'x');
  const auto whole = std::as_bytes(std::span(bytes));
  for (const size_t step : {size_t{1000}, BlockChecksums::kBytes, bytes.size()}) {
    BlockChecksums sums;
    for (size_t at = 0; at < bytes.size(); at += step)
      sums.add(bytes.data() + at, std::min(step, bytes.size() - at));
    const auto block = xxh3_64(whole.first(BlockChecksums::kBytes));
    EXPECT_EQ(sums.finish(), (std::vector{block, block, block, xxh3_64(whole.last(5))}));
  }
}

/// Settled files: a file that changed in the last seconds is read every time.
class RememberedHashes : public ::testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kSettles{3200};

  void write(std::string_view text) {
    std::ofstream(file_, std::ios::binary | std::ios::trunc) << text;
  }
  struct stat status() const {
    struct stat info {};
    ::stat(file_.c_str(), &info);
    return info;
  }
  /// Other contents, with the size, inode and mtime that the file had.
  void change_with_the_same_mtime(std::string_view text) {
    const struct stat before = status();
    std::fstream(file_, std::ios::binary | std::ios::in | std::ios::out) << text;
    const timespec times[] = {before.st_atim, before.st_mtim};
    ::utimensat(AT_FDCWD, file_.c_str(), times, 0);
    ASSERT_EQ(status().st_mtim.tv_nsec, before.st_mtim.tv_nsec);
    ASSERT_EQ(status().st_size, before.st_size);
    ASSERT_EQ(status().st_ino, before.st_ino);
  }
  std::vector<fs::path> entries() const {
    if (!fs::exists(memory_)) return {};
    return {fs::directory_iterator(memory_), fs::directory_iterator()};
  }

  test::TemporaryDirectory dir_;
  fs::path file_ = dir_ / "file", memory_ = dir_ / "cache" / "hashes";
  FileHashes hashes_{memory_};
};

TEST_F(RememberedHashes, FollowEveryByte) {
  std::string text(9'000'000, 'x');  // three pieces
  std::set<std::string> seen;
  for (const size_t at : {size_t{0}, size_t{4'500'000}, text.size() - 1}) {
    write(text);
    EXPECT_EQ(hashes_.of(file_), FileHashes({}).of(file_));
    seen.insert(hashes_.of(file_));
    text[at] = 'y';
  }
  seen.insert(FileHashes({}).of(file_, 1));
  write("");
  seen.insert(hashes_.of(file_));
  seen.insert(FileHashes({}).of(file_, 100));
  EXPECT_EQ(seen.size(), 5U);  // of nothing, and of nothing after an end, it is the same
}

TEST_F(RememberedHashes, AreRememberedAndForgottenWithTheFile) {
  write("first");
  const timespec of_the_future[] = {{4'000'000'000, 0}, {4'000'000'000, 0}};  // as archives have
  ::utimensat(AT_FDCWD, file_.c_str(), of_the_future, 0);
  const std::string fresh = hashes_.of(file_);
  EXPECT_TRUE(entries().empty());  // it may change again in the same moment
  std::this_thread::sleep_for(kSettles);
  EXPECT_EQ(hashes_.of(file_), fresh);
  ASSERT_EQ(entries().size(), 1U);
  const std::string entry = read_text_file(entries()[0]);
  EXPECT_NE(entry.find(fresh), std::string::npos);
  change_with_the_same_mtime("other");
  const std::string other = hashes_.of(file_);
  EXPECT_NE(other, fresh);
  EXPECT_EQ(other, FileHashes({}).of(file_));
}

TEST_F(RememberedHashes, ADamagedEntryIsMadeAnew) {
  write("text");
  std::this_thread::sleep_for(kSettles);
  const std::string hash = hashes_.of(file_);
  ASSERT_EQ(entries().size(), 1U);
  const std::string entry = read_text_file(entries()[0]);
  std::ofstream(entries()[0], std::ios::trunc) << entry.substr(0, 20);
  EXPECT_EQ(hashes_.of(file_), hash);
  for (size_t at = 0; at < entry.size(); at += 3) {
    std::string damaged = entry;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    std::ofstream(entries()[0], std::ios::trunc) << damaged;
    EXPECT_EQ(hashes_.of(file_), hash) << at;
    EXPECT_EQ(read_text_file(entries()[0]), entry) << at;
  }
}

TEST_F(RememberedHashes, SeveralProcessesShareThem) {
  write(std::string(1'000'000, 'z'));
  std::this_thread::sleep_for(kSettles);
  const std::string hash = FileHashes({}).of(file_);
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(hashes_.of(file_) == hash ? 0 : 1);
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(entries().size(), 1U);
  EXPECT_EQ(hashes_.of(file_), hash);
}

TEST_F(RememberedHashes, AFolderThatCannotBeWrittenIsNoObstacle) {
  write("text");
  std::this_thread::sleep_for(kSettles);
  write_file_atomically(dir_ / "in-the-way", "");
  EXPECT_EQ(FileHashes(dir_ / "in-the-way").of(file_), FileHashes({}).of(file_));
}

TEST_F(RememberedHashes, StopEarly) {
  write(std::string(20'000'000, 'z'));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THROW(hashes_.of(file_, 0, stop.get_token()), FileHashes::Stopped);
}

TEST_F(RememberedHashes, RefuseWhatIsNoFile) {
  ::mkfifo((dir_ / "pipe").c_str(), 0600);
  test::expect_error<DataError>([&] { hashes_.of(dir_ / "pipe"); }, {"is a named pipe"});
  test::expect_error<DataError>([&] { hashes_.of(dir_ / "none"); }, {"cannot open file"});
}

}  // namespace
}  // namespace sftrun
