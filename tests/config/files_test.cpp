#include <algorithm>

#include "config_test_base.h"
#include "sftrun/config/problem.h"
#include "sftrun/core/file.h"

namespace sftrun::config {
namespace {

const std::filesystem::path kTests = std::filesystem::path(SFTRUN_TEST_DATA).parent_path();

std::vector<std::filesystem::path> yaml_files_in(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// What a configuration is answered with on two devices, its directory left out of the places.
std::string answer(const std::filesystem::path& yaml) {
  try {
    LoadedConfig loaded = load_config(yaml, {});
    resolve(loaded, yaml, 2);
    return "no error\n";
  } catch (const ConfigError& error) {
    std::string text = error.what();
    const std::string directory = yaml.parent_path().string() + "/";
    for (size_t at = text.find(directory); at != std::string::npos; at = text.find(directory)) {
      text.erase(at, directory.size());
    }
    return text + "\n";
  }
}

// tests/config_errors/<name>.yaml is answered with <name>.txt, word by word.
TEST_F(ConfigTest, EveryMistakeHasItsMessage) {
  const auto files = yaml_files_in(kTests / "config_errors");
  EXPECT_EQ(files.size(), 71u);
  for (const auto& file : files) {
    std::filesystem::path expected = file;
    expected.replace_extension(".txt");
    EXPECT_EQ(answer(file), read_text_file(expected)) << file;
  }
}

TEST_F(ConfigTest, ReportsTheFirstTwentyProblems) {
  std::string keys;
  for (int i = 0; i < 40'000; ++i) keys += fmt::format("no_such_key_{}: 1\n", i);
  try {
    load(keys);
    ADD_FAILURE() << "no error";
  } catch (const ConfigProblems& found) {
    const std::string text = found.what();
    EXPECT_NE(text.find("unknown key `no_such_key_19`"), std::string::npos);
    EXPECT_EQ(text.find("no_such_key_20`"), std::string::npos);
    EXPECT_NE(text.find("and 39980 more problems"), std::string::npos);
    EXPECT_LT(text.size(), 10'000U);
  }
}

TEST_F(ConfigTest, ChecksRegularExpressionsOfTrainable) {
  const std::string deep = std::string(20'000, '(') + std::string(20'000, ')');
  for (const std::string& pattern : {std::string("("), deep}) {
    try {
      load("tuning: {mode: partial, trainable: ['" + pattern + "']}\n");
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("`tuning.trainable` has `("), std::string::npos) << text;
      EXPECT_NE(text.find("which is not a regular expression"), std::string::npos);
      EXPECT_LT(text.size(), 1000U);
    }
  }
}

TEST_F(ConfigTest, TruncatesLongKeys) {
  try {
    load(std::string(900, 'k') + ": 1\n");
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(std::string(200, 'k') + "… (900 bytes)`"),
              std::string::npos);
    EXPECT_LT(std::string(error.what()).size(), 1000U);
  }
}

TEST_F(ConfigTest, ShippedConfigurationsLoad) {
  const auto files = yaml_files_in(kTests.parent_path() / "configs");
  std::vector<std::string> names;
  for (const auto& file : files) {
    names.push_back(file.filename().string());
    LoadedConfig loaded = load_config(file, {});
    EXPECT_TRUE(loaded.warnings.empty()) << file;
    resolve(loaded, file, 2);
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       "a100_pair.yaml", "demo.yaml", "gpt-oss-20b.yaml", "h200_quad.yaml",
                       "multi_gpu_config.yaml", "multi_gpu_ddp.yaml", "multi_gpu_fsdp.yaml",
                       "rtx4090_sli.yaml", "run_bnb.yaml", "run_full.yaml", "run_lora.yaml",
                       "run_unsloth.yaml", "single_gpu.yaml"}));
}

}  // namespace
}  // namespace sftrun::config
