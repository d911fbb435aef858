#include "token_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {
namespace fs = std::filesystem;

Example example_of(int32_t token) {
  return {
      .tokens = {token, token}, .labels = {token, kIgnoreIndex}, .record = 0, .label_tokens = 1};
}

void write_one(const fs::path& target, const std::string& key, int32_t token) {
  ExampleWriter writer(target);
  writer.add(example_of(token));
  writer.finish({{"key", key}});
}

class TokenCaches : public ::testing::Test {
 protected:
  TokenCaches() { log::configure({.console = log::Level::kOff}); }
  int32_t get(const TokenCache& cache, const std::string& key, int32_t made) {
    return cache.get(key, "data", [&](const fs::path& target) { write_one(target, key, made); })[0]
        .token(0);
  }
  /// Several processes ask at once: one makes it, and all have what that one made.
  void expect_made_once(const std::string& key) {
    constexpr int kProcesses = 6;
    std::vector<pid_t> children;
    for (int i = 0; i < kProcesses; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        const TokenCache cache((dir_ / "cache").string());
        const ExampleStore store = cache.get(key, "data", [&](const fs::path& target) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          write_file_atomically(dir_ / ("made-" + std::to_string(i)), "");
          write_one(target, key, 10 + i);
        });
        ::_exit(store[0].token(0));
      }
      children.push_back(child);
    }
    std::vector<int> seen;
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFEXITED(status));
      seen.push_back(WEXITSTATUS(status));
    }
    int made = 0;
    for (int i = 0; i < kProcesses; ++i) {
      if (!fs::exists(dir_ / ("made-" + std::to_string(i)))) continue;
      ++made;
      for (const int token : seen) EXPECT_EQ(token, 10 + i);
    }
    EXPECT_EQ(made, 1);
  }
  test::TemporaryDirectory dir_;
  TokenCache cache_{(dir_ / "cache").string()};
};

TEST_F(TokenCaches, ReusesCachedData) {
  EXPECT_EQ(get(cache_, "a", 1), 1);
  EXPECT_EQ(get(cache_, "a", 2), 1);
  EXPECT_EQ(get(TokenCache((dir_ / "cache").string()), "a", 3), 1);
  EXPECT_EQ(get(cache_, "b", 4), 4);
}

TEST_F(TokenCaches, NoneDisablesTheCache) {
  const TokenCache none("none");
  EXPECT_EQ(get(none, "a", 1), 1);
  EXPECT_EQ(get(none, "a", 2), 2);
  EXPECT_TRUE(none.hashes().empty());
}

TEST_F(TokenCaches, DamagedFilesAreMadeAgain) {
  EXPECT_EQ(get(cache_, "a", 1), 1);
  fs::resize_file(dir_ / "cache" / "a" / "examples", 20);
  EXPECT_EQ(get(cache_, "a", 2), 2);
  EXPECT_EQ(get(cache_, "a", 3), 2);
}

TEST_F(TokenCaches, AnotherKeysFileIsMadeAnew) {
  EXPECT_EQ(get(cache_, "a", 1), 1);
  EXPECT_EQ(get(cache_, "b", 2), 2);
  fs::copy_file(dir_ / "cache" / "b" / "examples", dir_ / "cache" / "a" / "examples",
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(get(cache_, "a", 3), 3);
  EXPECT_EQ(get(cache_, "a", 4), 3);
}

TEST_F(TokenCaches, DamagedTokensAreMadeAnewByOneOfSeveralProcesses) {
  EXPECT_EQ(get(cache_, "a", 1), 1);
  {
    std::fstream file(dir_ / "cache" / "a" / "examples",
                      std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(8);  // the first token
    file.put('\7');
  }
  expect_made_once("a");
}

TEST_F(TokenCaches, AFailureLeavesNoFiles) {
  EXPECT_THROW(cache_.get("a", "data",
                          [](const fs::path& target) {
                            ExampleWriter writer(target);
                            writer.add(example_of(1));
                            throw DataError("bad record");
                          }),
               DataError);
  for (const auto& entry : fs::directory_iterator(dir_ / "cache" / "a"))
    EXPECT_EQ(entry.path().filename(), "lock");
  EXPECT_EQ(get(cache_, "a", 2), 2);
}

TEST_F(TokenCaches, APipeIsNoLock) {
  make_directories(dir_ / "cache" / "a");
  ASSERT_EQ(::mkfifo((dir_ / "cache" / "a" / "lock").c_str(), 0600), 0);
  test::expect_error<DeviceError>(
      [&] { get(cache_, "a", 2); },
      {"cannot create a lock file: is a named pipe", "a/lock", "fix: remove or rename it"});
}

TEST_F(TokenCaches, OneOfSeveralProcessesMakesIt) {
  expect_made_once("a");
}

TEST_F(TokenCaches, AKilledProcessIsNoObstacle) {
  const pid_t child = ::fork();
  if (child == 0) {
    cache_.get("a", "data", [](const fs::path& target) {
      ExampleWriter writer(target);
      writer.add(example_of(1));
      ::kill(::getpid(), SIGKILL);
    });
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(get(cache_, "a", 2), 2);
  for (const auto& entry : fs::directory_iterator(dir_ / "cache" / "a"))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp")) << entry.path();
}

}  // namespace
}  // namespace sftrun::data
