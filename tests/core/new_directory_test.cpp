#include "sftrun/core/new_directory.h"

#include <gtest/gtest.h>

#include <filesystem>

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
