#include "run_check.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

class RunChecks : public ::testing::Test {
 protected:
  RunChecks() { log::configure({.console = log::Level::kOff}); }

  /// A model's directory without its weights.
  fs::path without_weights(const char* model) {
    fs::copy(test::kModels / model / "config.json", directory_ / "config.json");
    return directory_.path();
  }
  void write_config(const nlohmann::json& config) {
    write_file_atomically(directory_ / "config.json", config.dump());
  }
  std::string write_records(const std::string& name, int count) {
    std::string lines;
    for (int i = 0; i < count; ++i)
      lines += R"({"prompt": "say it", "completion": "it"})"
               "\n";
    write_file_atomically(directory_ / name, lines);
    return (directory_ / name).string();
  }

  test::TemporaryDirectory directory_;
};

TEST_F(RunChecks, HeadersSayWhatTheFilesHold) {
  const ModelHeaders dense = read_headers(test::kModels / "tied-gqa");
  EXPECT_EQ(dense.arch.num_layers, 2);
  EXPECT_TRUE(dense.has_weights);
  EXPECT_TRUE(dense.knows_form);
  EXPECT_TRUE(dense.stored.empty());
  const ModelHeaders quantised = read_headers(test::kModels / "bnb-nf4");
  EXPECT_FALSE(quantised.stored.empty());
  const ModelHeaders gguf = read_headers(test::kModels / "llama3-gguf" / "model-Q8_0.gguf");
  EXPECT_FALSE(gguf.stored.empty());
  EXPECT_FALSE(gguf.block_kinds.empty());
}

TEST_F(RunChecks, WithoutWeightsTheConfigurationIsEnough) {
  const ModelHeaders dense = read_headers(without_weights("tied-gqa"));
  EXPECT_FALSE(dense.has_weights);
  EXPECT_TRUE(dense.knows_form);
  EXPECT_EQ(dense.arch.hidden_size, 24);
  nlohmann::json config = nlohmann::json::parse(read_text_file(directory_ / "config.json"));
  config["quantization_config"] = {{"quant_method", "bitsandbytes"}};
  write_config(config);
  EXPECT_FALSE(read_headers(directory_.path()).knows_form) << "what is quantised is not known";
  write_file_atomically(directory_ / "config.json", "{");
  test::expect_error([&] { read_arch(directory_.path()); }, {"not valid JSON", "config.json"});
}

TEST_F(RunChecks, NamesOfModulesMustExist) {
  const spec::ArchSpec arch = read_arch(test::kModels / "tied-gqa");
  config::TuningConfig tuning;
  EXPECT_NO_THROW(check_tuning(tuning, arch));
  tuning.skip_modules = {"no_proj"};
  test::expect_error<ConfigError>(
      [&] { check_tuning(tuning, arch); },
      {"no module of the model is named `no_proj`", "tuning.skip_modules"});
  tuning.skip_modules = {"down_proj", "layers.1.mlp"};
  EXPECT_NO_THROW(check_tuning(tuning, arch));
  tuning.lora.target_modules.names = {"nothing_like_it"};
  EXPECT_THROW(check_tuning(tuning, arch), ConfigError);
  tuning = {};
  tuning.mode = config::TuningMode::kPartial;
  tuning.trainable = {"no such tensor"};
  EXPECT_THROW(check_tuning(tuning, arch), ConfigError);
  tuning.trainable = {"norm"};
  EXPECT_NO_THROW(check_tuning(tuning, arch));
}

config::RunConfig config_of(const std::string& train) {
  config::RunConfig config;
  config.model.dtype = config::DTypeChoice::kFp32;
  config.model.max_seq_len = 64;
  config.data.train = {{.path = train}};
  return config;
}

TEST_F(RunChecks, PartsNeedAModelWithImages) {
  config::TuningConfig tuning;
  tuning.train_parts.training[ModelPart::kVision] = config::PartTraining::kByMode;
  for (const config::TuningMode mode : {config::TuningMode::kLora, config::TuningMode::kFull}) {
    tuning.mode = mode;
    test::expect_error<ConfigError>(
        [&] { check_tuning(tuning, read_arch(test::kModels / "tied-gqa")); },
        {"it has no vision part", "tuning.train_parts", "remove vision from train_parts"});
    check_tuning(tuning, read_arch(fs::path(SFTRUN_TEST_DATA) / "vision" / "gemma3"));
  }
  tuning.train_parts.training[ModelPart::kLanguage] = config::PartTraining::kFrozen;
  test::expect_error<ConfigError>(
      [&] { check_tuning(tuning, read_arch(test::kModels / "tied-gqa")); },
      {"it has no vision part", "remove train_parts, or use a model that takes images"});
}

TEST_F(RunChecks, ARunIsDescribedByItsModelAndItsData) {
  const fs::path model = test::kModels / "tied-gqa";
  const config::RunConfig config = config_of(write_records("train.jsonl", 5));
  const RunCheck check = check_run(config, model, read_headers(model));
  ASSERT_EQ(check.lines.size(), 3U) << join(check.lines, "\n");
  EXPECT_TRUE(check.lines[0].starts_with("model: llama, 2 layers, ")) << check.lines[0];
  EXPECT_TRUE(check.lines[1].starts_with("base: ")) << check.lines[1];
  EXPECT_NE(check.lines[2].find("all 5: 5 examples"), std::string::npos) << check.lines[2];
  ASSERT_EQ(check.train.size(), 1U);
  EXPECT_TRUE(check.train[0].is_whole);
  EXPECT_EQ(check.train[0].lengths.size(), 5U);
}

TEST_F(RunChecks, OnlyTheFirstRecordsAreRead) {
  const fs::path model = test::kModels / "tied-gqa";
  config::RunConfig config = config_of(write_records("train.jsonl", 5000));
  const ModelHeaders headers = read_headers(model);
  const data::DatasetTrial trial = check_run(config, model, headers).train.at(0);
  EXPECT_FALSE(trial.is_whole);
  EXPECT_NEAR(static_cast<double>(trial.num_records_estimated), 5000, 50);
  config.data.val_split = 4990;  // may be right: the number of records is an estimate
  EXPECT_NO_THROW(check_run(config, model, headers));
  config.data.val_split = 20000;
  test::expect_error([&] { check_run(config, model, headers); },
                     {"leaves nothing to train on", "data.val_split"});
}

TEST_F(RunChecks, ErrorsOfAllDataSetsComeTogether) {
  const fs::path model = test::kModels / "tied-gqa";
  config::RunConfig config = config_of((directory_ / "absent-train.jsonl").string());
  config.data.val = {{.path = (directory_ / "absent-val.jsonl").string()}};
  test::expect_error([&] { check_run(config, model, read_headers(model)); },
                     {"absent-train.jsonl", "absent-val.jsonl"});
}

}  // namespace
}  // namespace sftrun::app
