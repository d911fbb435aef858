#include "sftrun/core/new_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun {
namespace {

void fill_directory(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  write_file_atomically(directory / "config.json", "{}");
}

TEST(NewDirectory, OneCommandAtATimeWritesIt) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path target = folder / "merged";
  for (const Existing existing : {Existing::kMustBeEmpty, Existing::kReplace}) {
    write_new_directory(
        target, "the model",
        [&](const std::filesystem::path& directory) {
          fill_directory(directory);
          const auto again = [&] {
            write_new_directory(target, "the model", fill_directory, existing);
          };
          test::expect_error<ConfigError>(again, {"another command is writing the model now"});
          write_new_directory(folder / "other", "the model", fill_directory, Existing::kReplace);
        },
        existing);
    EXPECT_TRUE(std::filesystem::exists(target / "config.json"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "merged.lock"));
}

TEST(NewFile, OneCommandAtATimeWritesIt) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path target = folder / "new" / "adapter.gguf";
  const auto write = [](const std::filesystem::path& file) { write_file_atomically(file, "GGUF"); };
  write_new_file(target, "the adapter", [&](const std::filesystem::path& file) {
    test::expect_error<ConfigError>([&] { write_new_file(target, "the adapter", write); },
                                    {"another command is writing the adapter now"});
    write(file);
  });
  EXPECT_EQ(read_text_file(target), "GGUF");
  EXPECT_FALSE(std::filesystem::exists(folder / "new" / "adapter.gguf.lock"));
  test::expect_error<DeviceError>([&] { write_new_file(target, "the adapter", write); },
                                  {"it exists"});
  write_new_file(target, "the adapter", write, Existing::kReplace);
}

TEST(NewFiles, AreThereTogetherOrNotAtAll) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path first = folder / "a.gguf", second = folder / "b.gguf";
  const auto fill = [](AtomicFile& file) { file.write("new"); };
  const auto fail = [](AtomicFile& file) {
    file.write("new");
    throw DeviceError("No space left on device");
  };
  EXPECT_THROW(write_new_files({{first, fill}, {second, fail}}, "the model"), DeviceError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  write_new_files({{first, fill}, {second, fill}}, "the model");
  EXPECT_EQ(read_text_file(first), "new");
  EXPECT_EQ(read_text_file(second), "new");
  test::expect_error<DeviceError>(
      [&] {
        write_new_files({{folder / "c.gguf", fill}, {second, fill}}, "the model");
      },
      {"it exists", "b.gguf"});
  EXPECT_FALSE(std::filesystem::exists(folder / "c.gguf"));
}

TEST(NewFiles, AllPlacesAreCheckedBeforeAnythingIsWritten) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path first = folder / "a.gguf";
  write_file_atomically(first, "old");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::filesystem::create_directory(folder / "folder");
  bool is_written = false;
  const auto write = [&](AtomicFile&) { is_written = true; };
  for (const auto& [name, reason] :
       {std::pair("pipe", "is a named pipe"), std::pair("folder", "Is a directory")}) {
    test::expect_error<DeviceError>(
        [&, other = folder / name] {
          write_new_files({{first, write}, {other, write}}, "the model", Existing::kReplace);
        },
        {reason, name});
  }
  EXPECT_FALSE(is_written);
  EXPECT_EQ(read_text_file(first), "old");
}

TEST(NewFiles, APlaceThatIsTakenMeanwhileLeavesTheOthersAlone) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path first = folder / "a.gguf", second = folder / "b.gguf";
  const auto fill = [](AtomicFile& file) { file.write("new"); };
  const auto fill_and_take = [&](AtomicFile& file) {
    file.write("new");
    std::filesystem::create_directory(second);
  };
  EXPECT_THROW(write_new_files({{first, fill}, {second, fill_and_take}}, "the model"), DeviceError);
  EXPECT_FALSE(std::filesystem::exists(first));
}

TEST(NewDirectory, WhatAnotherCommandHasWrittenStays) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path target = folder / "merged";
  write_new_directory(target, "the model", fill_directory);
  bool is_written = false;
  test::expect_error<DeviceError>(
      [&] {
        write_new_directory(target, "the model",
                            [&](const std::filesystem::path&) { is_written = true; });
      },
      {"it exists"});
  EXPECT_FALSE(is_written) << "found before the work";
  EXPECT_TRUE(std::filesystem::exists(target / "config.json"));
}

}  // namespace
}  // namespace sftrun
