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
  /// A README.md with this head.
  void make_card(const std::string& folder, const std::string& head) {
    std::filesystem::create_directories(dir_ / folder);
    write_file_atomically(dir_ / folder / "README.md", "---\n" + head + "---\n# Text\n");
  }
  std::vector<std::string> files(const std::string& path, const std::string& split = "",
                                 SplitRole role = SplitRole::kTrain, const std::string& name = "") {
    std::vector<std::string> names;
    for (const auto& file :
         source_files({.path = (dir_ / path).string(), .name = name, .split = split}, role))
      names.push_back(file.lexically_relative(dir_.path()).string());
    return names;
  }
  std::vector<std::string> subset(const std::string& name, const std::string& split = "") {
    return files("d", split, SplitRole::kTrain, name);
  }
  DataError failure(const std::string& path, const std::string& split = "",
                    SplitRole role = SplitRole::kTrain, const std::string& name = "") {
    try {
      files(path, split, role, name);
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

// The layout of HuggingFaceH4/ultrafeedback_binarized.
TEST_F(SourceFiles, ShardsOfSeveralSplitsAreNotOne) {
  const auto shard = [](const std::string& folder, const std::string& split) {
    return folder + "/data/" + split + "-00000-of-00001.parquet";
  };
  for (const char* split : {"train_prefs", "train_sft", "test_prefs", "test_sft"})
    make({shard("u", split)});
  EXPECT_EQ(failure("u").message(),
            "the folder has several splits that may be `train`: train_prefs, train_sft");
  EXPECT_EQ(failure("u").fix(), "say which as {path: …, split: train_prefs}");
  EXPECT_EQ(failure("u", "train").message(), failure("u").message());
  EXPECT_NE(failure("u", "", SplitRole::kValidation).message().find("test_prefs, test_sft"),
            std::string::npos);
  EXPECT_EQ(files("u", "train_sft"), Names{shard("u", "train_sft")});
  make({shard("u", "train")});
  EXPECT_EQ(files("u"), Names{shard("u", "train")}) << "the split of the very name";
  make({shard("o", "train_sft"), shard("o", "dev"), shard("o", "val")});
  EXPECT_EQ(files("o"), Names{shard("o", "train_sft")}) << "the only one";
  EXPECT_EQ(files("o", "", SplitRole::kValidation), (Names{shard("o", "dev"), shard("o", "val")}));
  // Files of one split, and folders that say it.
  make({"p/train_1.jsonl", "p/train_2.jsonl", "p/train_b.jsonl"});
  EXPECT_EQ(files("p").size(), 3U);
  make({"q/train/a-00000-of-00001.parquet", "q/train/b-00000-of-00001.parquet"});
  EXPECT_EQ(files("q").size(), 2U);
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

TEST_F(SourceFiles, ABrokenLinkIsNoAbsentFile) {
  const auto link_nowhere = [&](const std::string& name) {
    std::filesystem::create_symlink("../blobs/ab12", dir_ / name);
  };
  make({"f/train-0.jsonl", "f/test.jsonl"});
  link_nowhere("f/notes.txt");  // no data
  EXPECT_EQ(files("f"), (Names{"f/train-0.jsonl"}));
  link_nowhere("f/train-1.jsonl");
  EXPECT_EQ(failure("f").message(), "a broken symbolic link to ../blobs/ab12");
  EXPECT_EQ(failure("f").where(), (dir_ / "f/train-1.jsonl").string());
  EXPECT_EQ(files("f", "test"), (Names{"f/test.jsonl"}));
  make({"g/data.jsonl"});
  link_nowhere("g/README.md");
  EXPECT_EQ(failure("g").where(), (dir_ / "g/README.md").string());
}

TEST_F(SourceFiles, ASplitOfWhatIsNoFolderIsRefused) {
  make({"a.jsonl", "d/train.jsonl"});
  EXPECT_EQ(failure("a.jsonl", "train[:10]").message(),
            "`split: train[:10]` has no effect: splits exist only for folders and data sets on the "
            "hub, and this is one file");
  EXPECT_EQ(failure("a.jsonl", "train[:10]").fix(),
            "for the first 10 records write max_samples: 10");
  EXPECT_EQ(failure("*.jsonl", "test").fix(), "remove `split`, or use the folder as path");
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

constexpr const char* kTwoSubsets = R"(
license: mit
configs:
- config_name: en
  data_files: en/*.jsonl
- config_name: fr
  data_files:
  - split: train
    path: [fr/a.jsonl, "fr/t*.jsonl"]
  - split: test
    path: fr/held_out.jsonl
)";

TEST_F(SourceFiles, SubsetsAreThoseOfTheReadme) {
  make({"d/en/b.jsonl", "d/en/a.jsonl", "d/fr/a.jsonl", "d/fr/t.jsonl", "d/fr/held_out.jsonl"});
  make_card("d", kTwoSubsets);
  EXPECT_EQ(subset("en"), (Names{"d/en/a.jsonl", "d/en/b.jsonl"}));
  EXPECT_EQ(subset("fr"), (Names{"d/fr/a.jsonl", "d/fr/t.jsonl"}));
  EXPECT_EQ(subset("fr", "test"), Names{"d/fr/held_out.jsonl"});
  EXPECT_EQ(files("d", "", SplitRole::kValidation, "fr"), Names{"d/fr/held_out.jsonl"});
  EXPECT_EQ(failure("d").message(),
            "the data set has several subsets, none of which is the default: en, fr");
  EXPECT_NE(failure("d").fix().find("{path: …, name: en}"), std::string::npos);
  EXPECT_TRUE(failure("d").where().ends_with("d/README.md"));
  const DataError misspelt = failure("d", "", SplitRole::kTrain, "fra");
  EXPECT_EQ(misspelt.message(), "the data set has no subset `fra`");
  EXPECT_EQ(misspelt.fix(), "did you mean `fr`? It has en, fr");
  EXPECT_EQ(failure("d", "", SplitRole::kTrain, "FR").fix(), "did you mean `fr`? It has en, fr");
  const DataError split = failure("d", "validation", SplitRole::kTrain, "fr");
  EXPECT_EQ(split.message(), "the data set has no split `validation` in its subset `fr`");
  EXPECT_EQ(split.fix(), "it has train, test; say which as {path: …, split: train}");
  EXPECT_NE(failure("d", "train[:5]", SplitRole::kTrain, "fr").fix().find("max_samples: 5"),
            std::string::npos);
  EXPECT_EQ(subset_of({.path = (dir_ / "d").string(), .name = "fr"}), ", subset `fr` of 2");
}

TEST_F(SourceFiles, TheDefaultSubset) {
  make({"d/a.jsonl", "d/b.jsonl"});
  const std::string a = "- {config_name: a, data_files: a.jsonl}\n";
  make_card("d", "configs:\n" + a + "- {config_name: b, data_files: b.jsonl, default: true}\n");
  EXPECT_EQ(subset(""), Names{"d/b.jsonl"});
  EXPECT_EQ(subset("a"), Names{"d/a.jsonl"});
  make_card("d", "configs:\n" + a + "- {config_name: default, data_files: b.jsonl}\n");
  EXPECT_EQ(subset(""), Names{"d/b.jsonl"});
  make_card("d", "configs:\n" + a);
  EXPECT_EQ(subset(""), Names{"d/a.jsonl"}) << "the only one";
  EXPECT_EQ(subset_of({.path = (dir_ / "d").string()}), "");
}

TEST_F(SourceFiles, SplitsOfASubsetThatAreNamedOtherwise) {
  make({"d/a.jsonl", "d/b.jsonl", "d/c.jsonl"});
  const auto card = [&](const std::string& first, const std::string& second) {
    make_card("d", "configs:\n- config_name: x\n  data_files:\n  - {split: " + first +
                       ", path: a.jsonl}\n  - {split: " + second + ", path: b.jsonl}\n");
  };
  card("train_sft", "test_sft");
  EXPECT_EQ(subset(""), Names{"d/a.jsonl"});
  EXPECT_EQ(files("d", "", SplitRole::kValidation), Names{"d/b.jsonl"});
  EXPECT_EQ(subset("", "test_sft"), Names{"d/b.jsonl"});
  card("train_sft", "train_gen");
  EXPECT_EQ(failure("d", "", SplitRole::kValidation).fix(),
            "it has train_sft, train_gen, to train on; data.val_split holds records out of "
            "data.train");
  EXPECT_EQ(failure("d").message(),
            "the data set has several such splits in its subset `x`: train_sft, train_gen");
  EXPECT_EQ(failure("d").fix(), "say which as {path: …, split: train_sft}");
  card("sft", "test");
  EXPECT_EQ(subset(""), Names{"d/a.jsonl"}) << "what says nothing is to train on";
  card("test", "validation");
  EXPECT_EQ(failure("d").message(), "the data set has no split `train` in its subset `x`");
}

TEST_F(SourceFiles, SubsetsByFolder) {
  make({"d/en/train.jsonl", "d/en/test.jsonl", "d/fr/1.jsonl", "d/fr/2.csv", "d/fr/config.json"});
  make_card("d",
            "configs:\n- {config_name: en, data_dir: en}\n- {config_name: fr, data_dir: ./fr/}\n");
  EXPECT_EQ(subset("en"), Names{"d/en/train.jsonl"});
  EXPECT_EQ(subset("en", "test"), Names{"d/en/test.jsonl"});
  EXPECT_EQ(subset("fr"), (Names{"d/fr/1.jsonl", "d/fr/2.csv"}));
}

TEST_F(SourceFiles, CardsThatDatasetsRefuses) {
  make({"d/a.jsonl"});
  const auto refusal = [&](const std::string& head) {
    make_card("d", head);
    return failure("d").message();
  };
  const std::string what = "the data set's subsets cannot be read: ",
                    x = "configs:\n- config_name: x\n  ";
  EXPECT_EQ(refusal("configs: en\n"), what + "`configs` is not a list");
  EXPECT_EQ(refusal("configs: [{data_files: a}]\n"),
            what + "one of `configs` has no `config_name`");
  EXPECT_TRUE(refusal(x + "data_files: {train: a}\n").ends_with("nor a list of {split, path}"));
  EXPECT_EQ(refusal(x + "data_files: [{split: a, path: b}, {split: a, path: c}]\n"),
            what + "`data_files` of `x` names the split `a` twice");
  EXPECT_TRUE(refusal("configs: [\n").starts_with(what + "not valid YAML: "));
  EXPECT_TRUE(failure("d").where().ends_with("d/README.md:3")) << failure("d").where();
  EXPECT_EQ(refusal(x + "data_files: b.jsonl\n"),
            "the data set has no file that its subset `x` names: b.jsonl");
  EXPECT_NE(refusal(x + "data_files: '**.jsonl'\n").find("** must stand alone"), std::string::npos);
  make_card("d", "pretty_name: [\n");
  EXPECT_EQ(files("d"), Names{"d/a.jsonl"}) << "other keys are of no matter";
}

TEST_F(SourceFiles, ANameWithoutSubsetsIsRefused) {
  make({"d/en/a.jsonl", "d/fr/a.jsonl"});
  EXPECT_EQ(files("d").size(), 2U) << "folders alone are no subsets";
  EXPECT_EQ(subset("default").size(), 2U) << "as `datasets` calls it";
  const DataError error = failure("d", "", SplitRole::kTrain, "en");
  EXPECT_EQ(error.message(),
            "`name: en` has no effect: subsets are declared in `configs` of a data set's "
            "README.md, and there are none");
  EXPECT_TRUE(error.fix().ends_with("d/en")) << error.fix();
  EXPECT_EQ(failure("d/en/a.jsonl", "", SplitRole::kTrain, "en").fix(),
            "remove `name`, or use the folder as path");
}

TEST_F(SourceFiles, ReportsMissingFiles) {
  make({"d/test.jsonl", "e/README.md"});
  EXPECT_EQ(failure("d").message(), "the folder has no split `train`");
  EXPECT_NE(failure("d").fix().find("its files have the splits test"), std::string::npos);
  EXPECT_EQ(failure("e").message(), "the folder has no data files");
}

}  // namespace
}  // namespace sftrun::data
