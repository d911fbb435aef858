#include "selection.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sftrun::hub {
namespace {

using Names = std::vector<std::string>;

std::vector<RemoteFile> listing(const Names& paths) {
  std::vector<RemoteFile> files;
  for (const std::string& path : paths) files.push_back({path, 1});
  return files;
}
Names names(const Selection& selection) {
  Names paths;
  for (const RemoteFile& file : selection.files) paths.push_back(file.path);
  return paths;
}
RepoName model(const std::string& path = "") {
  return {.id = "owner/name", .path = path};
}
Selection select(const Names& paths, const std::string& path = "",
                 ModelParts parts = ModelParts::kAll) {
  return select_model(model(path), listing(paths), parts);
}

TEST(Selection, OnlyTextFilesAndWeights) {
  const Selection all = select({"README.md", "model.safetensors", "config.json", "tokenizer.json",
                                "pytorch_model.bin", "onnx/model.onnx", "original/params.json",
                                "tokenizer.model", "merges.txt", "training_args.bin", "tf_model.h5",
                                "model.safetensors.index.json", "chat_template.jinja"});
  EXPECT_EQ(names(all), (Names{"config.json", "tokenizer.json", "tokenizer.model", "merges.txt",
                               "chat_template.jinja", "model.safetensors"}));
  EXPECT_EQ(all.opened, "");
}

TEST(Selection, FilesOfProcessorsAreAmongTheTexts) {
  const Names files = {"tokenizer.json", "preprocessor_config.json", "processor_config.json",
                       "video_preprocessor_config.json"};
  Names all = files;
  all.push_back("model.safetensors");
  EXPECT_EQ(names(select(all, "", ModelParts::kText)), files);
  EXPECT_EQ(names(select(all)), all);
}

TEST(Selection, WeightsComeLast) {
  const Names got = names(
      select({"model-00001-of-00002.safetensors", "a.tiktoken", "model-00002-of-00002.safetensors",
              "config.json", "model.safetensors.index.json"}));
  EXPECT_EQ(got, (Names{"a.tiktoken", "config.json", "model.safetensors.index.json",
                        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}));
}

TEST(Selection, TheSameWeightsUnderOtherNamesAreLeftOut) {
  EXPECT_EQ(
      names(select({"model.safetensors", "model.fp16.safetensors", "consolidated.safetensors"})),
      Names{"model.safetensors"});
  EXPECT_EQ(names(select({"model.safetensors.index.json", "model-00001-of-00001.safetensors",
                          "model.fp16-00001-of-00001.safetensors", "consolidated.safetensors"})),
            (Names{"model.safetensors.index.json", "model-00001-of-00001.safetensors"}));
  // An index may name files as it likes.
  EXPECT_EQ(
      names(select({"model.safetensors.index.json", "part-a.safetensors", "part-b.safetensors",
                    "consolidated.safetensors", "adapter_model.safetensors"})),
      (Names{"model.safetensors.index.json", "part-a.safetensors", "part-b.safetensors"}));
}

TEST(Selection, TextAlone) {
  EXPECT_EQ(
      names(select({"config.json", "tokenizer.json", "model.safetensors"}, "", ModelParts::kText)),
      (Names{"config.json", "tokenizer.json"}));
  EXPECT_EQ(names(select({"config.json", "a.gguf"}, "", ModelParts::kText)), Names{"a.gguf"});
}

TEST(Selection, Folders) {
  const Names paths = {"model.safetensors",      "config.json",
                       "sub/config.json",        "sub/model.safetensors",
                       "sub/deeper/config.json", "submarine/config.json"};
  const Selection folder = select(paths, "sub");
  EXPECT_EQ(names(folder), (Names{"sub/config.json", "sub/model.safetensors"}));
  EXPECT_EQ(folder.opened, "sub");
  EXPECT_EQ(select({"gguf/a.gguf"}, "gguf").opened, "gguf/a.gguf");
  EXPECT_TRUE(select(paths, "su").none);
}

TEST(Selection, GgufFiles) {
  EXPECT_EQ(select({"a.gguf", "mmproj-a.gguf", "config.json"}).opened, "a.gguf");
  EXPECT_EQ(names(select({"config.json", "model.safetensors", "a.gguf"})),
            (Names{"config.json", "model.safetensors"}));
  const Selection two = select({"a.gguf", "b.gguf"});
  ASSERT_TRUE(two.none);
  EXPECT_NE(two.none->message.find("a.gguf, b.gguf"), std::string::npos);
  EXPECT_NE(two.none->fix.find("hf://owner/name/a.gguf"), std::string::npos);
  EXPECT_EQ(names(select({"a.gguf", "b.gguf"}, "b.gguf")), Names{"b.gguf"});
}

TEST(Selection, NoWeights) {
  EXPECT_NE(select({"config.json", "pytorch_model.bin"}).none->message.find("pickled"),
            std::string::npos);
  EXPECT_NE(select({}).none->message.find("has no weights"), std::string::npos);
  EXPECT_NE(select({"config.json", "other.safetensors"}).none->message.find("has no weights"),
            std::string::npos);
}

TEST(Selection, Shards) {
  EXPECT_EQ(shard_of("model-00002-of-00010.safetensors")->number, 2);
  EXPECT_EQ(shard_of("model-00002-of-00010.safetensors")->count, 10);
  for (const char* other : {"model.safetensors", "model-1-of-2.safetensors.bak",
                            "model-00001-of-00002", "xmodel-00001-of-00002.safetensors"})
    EXPECT_FALSE(shard_of(other)) << other;
}

Names data(const Names& paths, const std::string& path, const DatasetRequest& request,
           const std::string& head = "") {
  const RepoName name{.type = RepoType::kDataset, .id = "owner/name", .path = path};
  const Selection selection = select_dataset(
      name, listing(paths), request, parse_dataset_card("---\n" + head + "---\n", "README.md"));
  return selection.none ? Names{"none: " + selection.none->message} : names(selection);
}

TEST(Selection, DataSets) {
  const Names paths = {"data/train-1.jsonl", "data/train-0.jsonl", "data/test.jsonl",
                       "README.md",          "validation/x.jsonl", "constraint.jsonl"};
  EXPECT_EQ(data(paths, "", {.split = "train"}),
            (Names{"data/train-0.jsonl", "data/train-1.jsonl"}));
  EXPECT_EQ(data(paths, "", {.split = "validation"}), Names{"validation/x.jsonl"});
  EXPECT_EQ(data(paths, "", {.split = "test"}), Names{"data/test.jsonl"});
  EXPECT_EQ(data(paths, "data", {.split = "train"}).size(), 2U);
  EXPECT_EQ(data(paths, "", {}).size(), 5U);
  EXPECT_EQ(data(paths, "data/*1.jsonl", {.split = "test"}), Names{"data/train-1.jsonl"});
  EXPECT_EQ(data(paths, "README.md", {.split = "test"}), Names{"README.md"});
  EXPECT_EQ(data(paths, "", {.defaults = {"validation", "test"}}), Names{"validation/x.jsonl"});
  EXPECT_EQ(data({"train.jsonl", "test.jsonl"}, "", {.defaults = {"validation", "test"}}),
            Names{"test.jsonl"});
  EXPECT_EQ(data({"train.jsonl"}, "", {.defaults = {"validation", "test"}}),
            Names{"none: hf://datasets/owner/name has no split `validation`"});
  EXPECT_EQ(data({"a.jsonl"}, "", {.defaults = {"validation", "test"}}), Names{"a.jsonl"});
  EXPECT_EQ(data(paths, "*1.jsonl", {}),
            Names{"none: hf://datasets/owner/name has no file or folder *1.jsonl"});
  EXPECT_EQ(data({"a.jsonl", "b.jsonl"}, "", {.split = "train"}), (Names{"a.jsonl", "b.jsonl"}));
  EXPECT_EQ(data({"a.jsonl"}, "", {.split = "test"}),
            Names{"none: hf://datasets/owner/name has no split `test`"});
  EXPECT_NE(data({"a.csv"}, "", {.extensions = {".jsonl"}})[0].find("has no data files (.jsonl)"),
            std::string::npos);
  EXPECT_NE(data(paths, "dat", {})[0].find("no file or folder dat"), std::string::npos);
}

TEST(Selection, SubsetsOfDataSets) {
  const Names paths = {"README.md", "en/1.jsonl", "en/2.jsonl", "fr/1.jsonl", "sub/README.md"};
  const std::string head =
      "configs:\n- config_name: en\n  data_files: [en/2.jsonl, en/*.jsonl]\n"
      "- config_name: fr\n  data_files:\n  - {split: train, path: fr/*}\n"
      "  - {split: test, path: en/1.jsonl}\n";
  const Names train = {"train"};
  const auto subset = [&](const DatasetRequest& request) { return data(paths, "", request, head); };
  EXPECT_EQ(subset({.subset = "en", .defaults = train}), (Names{"en/1.jsonl", "en/2.jsonl"}));
  EXPECT_EQ(subset({.subset = "fr", .defaults = train}), Names{"fr/1.jsonl"});
  EXPECT_EQ(subset({.subset = "fr"}), (Names{"en/1.jsonl", "fr/1.jsonl"})) << "every split";
  EXPECT_EQ(subset({.defaults = train}),
            Names{"none: hf://datasets/owner/name has several subsets, none of which is the "
                  "default: en, fr"});
  EXPECT_EQ(subset({}).size(), 3U) << "sftrun download takes all";
  EXPECT_EQ(data(paths, "fr", {.subset = "fr"}),
            Names{"none: hf://datasets/owner/name/fr has no subset `fr`: its README.md declares "
                  "none (`configs`)"});
  EXPECT_EQ(data(paths, "", {.subset = "default", .defaults = train}).size(), 3U);
  const auto card = [&](const std::string& path) {
    const auto file =
        dataset_card({.type = RepoType::kDataset, .id = "o/n", .path = path}, listing(paths));
    return file ? file->path : "";
  };
  EXPECT_EQ(card(""), "README.md");
  EXPECT_EQ(card("sub"), "sub/README.md");
  EXPECT_EQ(card("en"), "");
  EXPECT_EQ(card("en/*.jsonl"), "");
}

}  // namespace
}  // namespace sftrun::hub
