#include "source_files.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/data/dataset.h"
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

// huggingface_hub's cache: a snapshot of links to files named by checksums.
TEST_F(SourceFiles, LinksTellTheirSplitsByTheirOwnNames) {
  make({"blobs/0a", "blobs/0b", "blobs/0c"});
  std::filesystem::create_directories(dir_ / "s/data");
  std::filesystem::create_symlink("../blobs/0a", dir_ / "s/train.jsonl");
  std::filesystem::create_symlink("../blobs/0b", dir_ / "s/test.jsonl");
  std::filesystem::create_symlink("../../blobs/0c", dir_ / "s/data/train-1.jsonl");
  const auto read = [&](const std::string& split, SplitRole role) {
    Names names;
    for (const auto& file : source_files({.path = (dir_ / "s").string(), .split = split}, role))
      names.push_back(file.lexically_relative(dir_.path()).string());
    return names;
  };
  EXPECT_EQ(read("", SplitRole::kTrain), (Names{"s/data/train-1.jsonl", "s/train.jsonl"}));
  EXPECT_EQ(read("", SplitRole::kValidation), Names{"s/test.jsonl"});
  EXPECT_EQ(read("test", SplitRole::kTrain), Names{"s/test.jsonl"});
}

TEST_F(SourceFiles, ASplitOfWhatIsNoFolderIsRefused) {
  make({"a.jsonl", "d/train.jsonl"});
  EXPECT_EQ(failure("a.jsonl", "train[:10]").message(),
            "`split: train[:10]` does nothing here: splits are those of folders and of data sets "
            "on the hub, and this is one file");
  EXPECT_EQ(failure("a.jsonl", "train[:10]").fix(),
            "for the first 10 records write max_samples: 10");
  EXPECT_EQ(failure("*.jsonl", "test").fix(), "leave `split` out, or give the folder as path");
  EXPECT_EQ(failure("d", "train[:10]").fix(), "for the first 10 records write max_samples: 10");
  EXPECT_NE(failure("d", "train[10%:]").fix().find("slices are not supported"), std::string::npos);
  EXPECT_NE(failure("d", "train+test").fix().find("list the data set once for each split"),
            std::string::npos);
}

TEST_F(SourceFiles, FilesThatAreTrainedAndValidatedOn) {
  make({"d/a.jsonl", "e/train.jsonl", "e/dev.jsonl"});
  const auto both = [&](const std::string& train, const std::string& val) {
    return files_in_both(
        {.train = {{.path = (dir_ / train).string()}}, .val = {{.path = (dir_ / val).string()}}});
  };
  EXPECT_EQ(both("d", "d"), Names{(dir_ / "d/a.jsonl").string()});
  EXPECT_EQ(both("d", "d/a.jsonl").size(), 1U);
  EXPECT_TRUE(both("e", "e").empty());
  EXPECT_TRUE(both("e", "d").empty());
}

TEST_F(SourceFiles, FilesOfTheHubsCacheAreShownByTheirNames) {
  const std::string snapshot = "/c/hub/datasets--me--data/snapshots/638a3180f0f7/";
  EXPECT_EQ(shown_name(snapshot + "data/train.jsonl"),
            "me/data (commit 638a318): data/train.jsonl");
  EXPECT_EQ(shown_name("/c/hub/datasets--me--data/snapshots/638a3180f0f7"),
            "me/data (commit 638a318)");
  EXPECT_EQ(shown_name("data/train.jsonl"), "data/train.jsonl");
}

TEST_F(SourceFiles, WhatIsMissingIsSaid) {
  make({"d/test.jsonl", "e/README.md"});
  EXPECT_EQ(failure("d").message(), "the folder has no split `train`");
  EXPECT_NE(failure("d").fix().find("its files name test"), std::string::npos);
  EXPECT_EQ(failure("e").message(), "the folder holds no data files");
}

}  // namespace
}  // namespace sftrun::data
