#include "sftrun/weights/embedding_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;

TEST(EmbeddingFiles, AreReadAsTheyWereWritten) {
  for (const bool is_mean : {false, true}) {
    const test::TemporaryDirectory directory;
    const fs::path folder = directory.path();
    EXPECT_FALSE(read_embedding_files(folder).has_value());
    EXPECT_FALSE(is_embedding_model(folder) || is_embedding_model(folder / "m.gguf"));
    write_embedding_files(folder,
                          {.is_mean = is_mean,
                           .normalizes = !is_mean,
                           .query_prompt = "q: ",
                           .document_prompt = "d: ",
                           .max_seq_length = 77},
                          32);
    const auto read = read_embedding_files(folder);
    ASSERT_TRUE(read.has_value());
    EXPECT_TRUE(is_embedding_model(folder));
    EXPECT_EQ(read->is_mean, is_mean);
    EXPECT_EQ(read->normalizes, !is_mean);
    EXPECT_EQ(read->query_prompt, "q: ");
    EXPECT_EQ(read->document_prompt, "d: ");
    EXPECT_EQ(read->max_seq_length, 77);
  }
}

TEST(EmbeddingFiles, AModelThatHasThemIsRefusedInTheWordsOfTheCaller) {
  const test::TemporaryDirectory directory;
  const fs::path folder = directory.path();
  refuse_embedding_model(folder, {.where = "here", .fix = "name another"});
  write_embedding_files(folder, {}, 32);
  test::expect_error<ConfigError>(
      [&] { refuse_embedding_model(folder, {.where = "here", .fix = "name another"}); },
      {"the model embeds texts (it has a modules.json), and gives no tokens", "here",
       "name another"});
  test::expect_error<ConfigError>(
      [&] { refuse_embedding_model(folder, {.model = "the teacher", .why = "has no head"}); },
      {"the teacher embeds texts (it has a modules.json), and has no head"});
}

/// As version 6 of the library writes them, without the files that older ones lack.
void write_modules(const fs::path& folder, const std::string& type, const std::string& pooling) {
  fs::create_directories(folder / "1_Pooling");
  write_file_atomically(folder / "1_Pooling" / "config.json", pooling);
  const nlohmann::json modules = {
      {{"idx", 0},
       {"name", "0"},
       {"path", ""},
       {"type", "sentence_transformers.base.modules.transformer.Transformer"}},
      {{"idx", 1}, {"name", "1"}, {"path", "1_Pooling"}, {"type", type}}};
  write_file_atomically(folder / "modules.json", modules.dump());
}

TEST(EmbeddingFiles, OfVersionSixAreReadAndOtherModulesRefused) {
  const test::TemporaryDirectory directory;
  const fs::path folder = directory.path();
  const std::string pooling = "sentence_transformers.sentence_transformer.modules.pooling.Pooling";
  write_modules(folder, pooling, R"({"embedding_dimension": 4, "pooling_mode": "lasttoken"})");
  const auto read = read_embedding_files(folder);
  ASSERT_TRUE(read.has_value());
  EXPECT_FALSE(read->is_mean);
  EXPECT_FALSE(read->normalizes);
  const auto refuses = [&](std::initializer_list<std::string> parts) {
    test::expect_error<DataError>([&] { read_embedding_files(folder); }, parts);
  };
  write_modules(folder, pooling, R"({"embedding_dimension": 4, "pooling_mode": "cls"})");
  refuses({"neither mean nor lasttoken", "1_Pooling"});
  write_modules(folder, pooling, R"({"pooling_mode": "mean", "include_prompt": false})");
  refuses({"leaves out the tokens of prompts"});
  write_modules(folder, "sentence_transformers.models.Dense", "{}");
  refuses({"sentence_transformers.models.Dense", "modules.json"});
}

}  // namespace
}  // namespace sftrun::weights
