#include "source_files.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

class SourceFiles : public ::testing::Test {
 protected:
  void make(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      std::filesystem::create_directories((dir_ / name).parent_path());
      write_file_atomically(dir_ / name, "{}");
    }
  }
  std::vector<std::string> files(const std::string& path, const std::string& split = "",
                                 SplitRole role = SplitRole::kTrain) {
    std::vector<std::string> names;
    for (const auto& file : source_files({.path = (dir_ / path).string(), .split = split}, role))
      names.push_back(std::filesystem::relative(file, dir_.path()).string());
    return names;
  }
  DataError failure(const std::string& path, const std::string& split = "",
                    SplitRole role = SplitRole::kTrain) {
    try {
      files(path, split, role);
    } catch (const DataError& error) {
      return error;
    }
    ADD_FAILURE() << "no error";
    return DataError("");
  }
  using Names = std::vector<std::string>;
  test::TemporaryDirectory dir_;
};

TEST_F(SourceFiles, PatternsAreSorted) {
  make({"b.jsonl", "a.jsonl", "c.csv", "sub/d.jsonl"});
  EXPECT_EQ(files("*.jsonl"), (Names{"a.jsonl", "b.jsonl"}));
  EXPECT_EQ(files("[ab].jsonl"), (Names{"a.jsonl", "b.jsonl"}));
  EXPECT_EQ(files("*"), (Names{"a.jsonl", "b.jsonl", "c.csv"})) << "folders are none";
  EXPECT_EQ(failure("*.tsv").message(), "no file matches");
  make({"odd[1].jsonl"});
  EXPECT_EQ(files("odd[1].jsonl"), (Names{"odd[1].jsonl"})) << "a file of that very name";
}

TEST_F(SourceFiles, AFolderWithoutSplitsIsTakenWhole) {
  make({"d/b.jsonl", "d/a.csv.gz", "d/sub/c.parquet", "d/README.md", "d/.hidden.jsonl",
        "d/.git/x.json", "d/dataset_infos.json"});
  EXPECT_EQ(files("d"), (Names{"d/a.csv.gz", "d/b.jsonl", "d/sub/c.parquet"}));
}

TEST_F(SourceFiles, SplitsAreReadFromNames) {
  make({"d/data/train-00000-of-00002.parquet", "d/data/train-00001-of-00002.parquet",
        "d/data/validation-00000-of-00001.parquet", "d/data/test-00000-of-00001.parquet",
        "d/data/extra_sft-00000-of-00001.parquet"});
  const Names train = {"d/data/train-00000-of-00002.parquet",
                       "d/data/train-00001-of-00002.parquet"};
  EXPECT_EQ(files("d"), train);
  EXPECT_EQ(files("d", "train"), train);
  EXPECT_EQ(files("d", "", SplitRole::kValidation),
            (Names{"d/data/validation-00000-of-00001.parquet"}));
  EXPECT_EQ(files("d", "val"), (Names{"d/data/validation-00000-of-00001.parquet"}));
  EXPECT_EQ(files("d", "test"), (Names{"d/data/test-00000-of-00001.parquet"}));
  EXPECT_EQ(files("d", "extra_sft"), (Names{"d/data/extra_sft-00000-of-00001.parquet"}));
  EXPECT_EQ(failure("d", "other").fix(), "it has test, train, validation");
}

TEST_F(SourceFiles, SplitsAreReadFromFolders) {
  make({"d/train/data-00000-of-00001.arrow", "d/train/state.json", "d/train/dataset_info.json",
        "d/test/data-00000-of-00001.arrow", "d/dataset_dict.json", "d/train/cache-1f.arrow"});
  EXPECT_EQ(files("d"), (Names{"d/train/data-00000-of-00001.arrow"}));
  EXPECT_EQ(files("d", "", SplitRole::kValidation), (Names{"d/test/data-00000-of-00001.arrow"}));
}

TEST_F(SourceFiles, WhatIsMissingIsSaid) {
  make({"d/test.jsonl", "e/README.md"});
  EXPECT_EQ(failure("d").message(), "the folder has no split `train`");
  EXPECT_NE(failure("d").fix().find("its files name test"), std::string::npos);
  EXPECT_EQ(failure("e").message(), "the folder holds no data files");
}

}  // namespace
}  // namespace sftrun::data
