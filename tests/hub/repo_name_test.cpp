#include "sftrun/hub/repo_name.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace sftrun::hub {
namespace {

using test::expect_error;

struct Case {
  const char* text;
  RepoName name;
};

TEST(RepoName, NamesOfModels) {
  const Case cases[] = {
      {"owner/name", {.id = "owner/name"}},
      {"Qwen/Qwen2.5-0.5B", {.id = "Qwen/Qwen2.5-0.5B"}},
      {"owner/name@v1.0", {.id = "owner/name", .revision = "v1.0"}},
      {"owner/name@refs/pr/7", {.id = "owner/name", .revision = "refs/pr/7"}},
      {"hf://owner/name", {.id = "owner/name"}},
      {"hf://owner/name/", {.id = "owner/name"}},
      {"hf://models/owner/name@main", {.id = "owner/name", .revision = "main"}},
      {"hf://owner/name/a.gguf", {.id = "owner/name", .path = "a.gguf"}},
      {"hf://owner/name@v1/sub/a.gguf",
       {.id = "owner/name", .revision = "v1", .path = "sub/a.gguf"}},
      {"hf://owner/name@refs/pr/7/a.gguf",
       {.id = "owner/name", .revision = "refs/pr/7", .path = "a.gguf"}},
      {"hf://owner/name@feature%2Fx/a.gguf",
       {.id = "owner/name", .revision = "feature/x", .path = "a.gguf"}},
      {"hf://owner/name/file@2.gguf", {.id = "owner/name", .path = "file@2.gguf"}},
      {"https://huggingface.co/owner/name", {.id = "owner/name"}},
      {"https://huggingface.co/owner/name/tree/main", {.id = "owner/name", .revision = "main"}},
      {"https://huggingface.co/owner/name/resolve/v1/a.gguf?download=true",
       {.id = "owner/name", .revision = "v1", .path = "a.gguf"}},
  };
  for (const Case& example : cases) {
    const auto name = parse_model_name(example.text);
    ASSERT_TRUE(name) << example.text;
    EXPECT_EQ(*name, example.name) << example.text;
    EXPECT_EQ(parse_model_name(name->text()), name) << name->text();
  }
}

TEST(RepoName, PagesOfDataSets) {
  const auto name =
      parse_dataset_name("https://huggingface.co/datasets/owner/name/blob/main/data/a.jsonl");
  ASSERT_TRUE(name);
  EXPECT_EQ(*name, (RepoName{.type = RepoType::kDataset,
                             .id = "owner/name",
                             .revision = "main",
                             .path = "data/a.jsonl"}));
  EXPECT_TRUE(begins_as_hub_name("https://hf.co/owner/name"));
  EXPECT_FALSE(begins_as_hub_name("https://example.org/owner/name"));
}

TEST(RepoName, PossiblePathsAreNotNames) {
  for (const char* text : {"",
                           "model",
                           "./owner/name",
                           "../owner/name",
                           "/owner/name",
                           "a/b/c",
                           "owner/",
                           "/name",
                           "owner/model.gguf",
                           "owner/train.jsonl",
                           "owner/a--b",
                           "owner/a..b",
                           "-owner/name",
                           "owner/name.",
                           "own er/name",
                           "owner/name@",
                           "owner/name@a b",
                           "owner/name@../x",
                           "~/models",
                           "C:/models",
                           "owner/n\xc3\xa4me"}) {
    EXPECT_FALSE(parse_model_name(text)) << text;
  }
  EXPECT_FALSE(parse_model_name("owner/" + std::string(97, 'a')));
  EXPECT_TRUE(parse_model_name("owner/" + std::string(96, 'a')));
}

TEST(RepoName, MalformedSchemesAreErrors) {
  for (const char* text :
       {"hf://", "hf://name", "hf://owner/", "hf://owner//name", "hf://spaces/a/b",
        "hf://owner/name@", "hf://owner/name@a:b", "hf://owner/name/../x", "hf://owner/name//x",
        "hf://owner/name/a\\b", "hf://datasets/owner"}) {
    expect_error<ConfigError>([&] { parse_model_name(text); }, {text, "hf://owner/name"});
  }
  expect_error<ConfigError>([] { parse_model_name("hf://datasets/a/b"); }, {"names a data set"});
  expect_error<ConfigError>([] { parse_dataset_name("hf://a/b"); }, {"names a model"});
}

TEST(RepoName, DataSets) {
  const RepoName file{RepoType::kDataset, "owner/name", "v1", "train/*.jsonl"};
  EXPECT_EQ(parse_dataset_name("hf://datasets/owner/name@v1/train/*.jsonl"), file);
  EXPECT_EQ(parse_dataset_name(file.text()), file);
  EXPECT_EQ(parse_dataset_name("owner/name")->type, RepoType::kDataset);
  EXPECT_EQ(parse_dataset_name("owner/name")->text(), "hf://datasets/owner/name");
  EXPECT_FALSE(parse_dataset_name("data/train.jsonl"));
}

TEST(RepoName, Revisions) {
  const RepoName name{.id = "owner/name"};
  EXPECT_EQ(name.revision_or_main(), "main");
  EXPECT_EQ(with_revision(name, "v1").revision, "v1");
  EXPECT_EQ(with_revision(name, ""), name);
  EXPECT_EQ(with_revision(with_revision(name, "v1"), "v1").revision, "v1");
  expect_error<ConfigError>([&] { with_revision(with_revision(name, "v1"), "v2"); },
                            {"owner/name@v1", "v2", "are different"});
  expect_error<ConfigError>([&] { with_revision(name, "a/../b"); }, {"is not a valid revision"});
  for (const char* good : {"main", "v1.0", "refs/pr/1", "a-b_c", "feature/x@2"})
    EXPECT_TRUE(is_revision(good)) << good;
  for (const char* bad : {"", "-x", "..", "a..b", "/a", "a/", "a//b", "a b", "a^", "a:b", ".a",
                          "a/.b", "a\n", "a@{1}", "a\\b"})
    EXPECT_FALSE(is_revision(bad)) << bad;
  EXPECT_TRUE(is_commit(std::string(40, 'a')));
  EXPECT_FALSE(is_commit(std::string(40, 'A')));
  EXPECT_FALSE(is_commit(std::string(39, 'a')));
}

TEST(RepoName, PathsThatAreSafeBelowAFolder) {
  for (const char* good : {"a", "a/b.json", "..a/b..", "a b", "\xc3\xa4.json", ".gitattributes"})
    EXPECT_TRUE(is_relative_path(good)) << good;
  for (const char* bad : {"", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\nb", "\x7f"})
    EXPECT_FALSE(is_relative_path(bad)) << bad;
  EXPECT_FALSE(is_relative_path(std::string(256, 'a')));
  EXPECT_TRUE(is_relative_path(std::string(255, 'a')));
  EXPECT_FALSE(is_relative_path(std::string_view("a\0b", 3)));
}

}  // namespace
}  // namespace sftrun::hub
