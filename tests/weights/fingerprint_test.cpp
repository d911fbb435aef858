#include "sftrun/weights/fingerprint.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "sftrun/core/file.h"
#include "sftrun/weights/gguf.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

namespace sftrun::weights {
namespace {
namespace fs = std::filesystem;

using test::kModels;

class Fingerprints : public ::testing::Test {
 protected:
  fs::path copied(const std::string& model) const {
    const fs::path copy = dir_ / "model";
    fs::remove_all(copy);
    fs::copy(kModels / model, copy, fs::copy_options::recursive);
    return copy;
  }
  static std::string print(const fs::path& model) {
    const auto checkpoint = Checkpoint::open(model);
    return fingerprint(*checkpoint, hash_weights(*checkpoint, FileHashes({})));
  }
  static void flip_a_bit(const fs::path& file, uint64_t at) {
    std::string bytes = read_text_file(file);
    bytes.at(at) = static_cast<char>(bytes[at] ^ 1);
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }
  test::TemporaryDirectory dir_;
};

/// Of every file many places, most of which no sample of beginnings, middles and ends holds.
TEST_F(Fingerprints, CountEveryByteOfTheWeights) {
  for (const char* name : {"tied-gqa", "linear-bias-sharded", "llama3-gguf/model-Q8_0.gguf"}) {
    const std::string stem = fs::path(name).begin()->string();
    const fs::path model =
        fs::path(name) == stem ? copied(stem) : copied(stem) / fs::path(name).filename();
    const std::string whole = print(model);
    int num_changes = 0;
    const auto files = Checkpoint::open(model)->weight_files();
    for (const Checkpoint::WeightFile& file : files) {
      const uint64_t size = fs::file_size(file.path);
      for (uint64_t at = file.begin; at < size; at += 1 + (size - file.begin) / 20, ++num_changes) {
        flip_a_bit(file.path, at);
        EXPECT_NE(print(model), whole) << file.path << " " << at;
        flip_a_bit(file.path, at);
      }
    }
    EXPECT_GE(num_changes, 19 * static_cast<int>(files.size()));
    EXPECT_EQ(print(model), whole);
  }
}

TEST_F(Fingerprints, TheConfigurationIsItsKeysThatMayDecideNumbers) {
  const fs::path model = copied("tied-gqa"), file = model / "config.json";
  const auto was = Checkpoint::open(model)->configuration();
  nlohmann::json config = nlohmann::json::parse(read_text_file(file));
  config["transformers_version"] = "9";
  config["_name_or_path"] = "elsewhere";
  std::ofstream(file) << config.dump();
  EXPECT_EQ(Checkpoint::open(model)->configuration(), was);
  config["rms_norm_eps"] = 0.5;
  std::ofstream(file) << config.dump();
  auto is = Checkpoint::open(model)->configuration();
  EXPECT_NE(is, was);
  EXPECT_EQ(is["rms_norm_eps"], 0.5);
  is["rms_norm_eps"] = was["rms_norm_eps"];
  EXPECT_EQ(is, was);
}

TEST_F(Fingerprints, OfGgufTheMetadataOfTheModel) {
  const auto keys = Checkpoint::open(kModels / "llama3-gguf/model-Q8_0.gguf")->configuration();
  EXPECT_EQ(keys["general.architecture"], "llama");
  EXPECT_TRUE(keys.contains("llama.rope.freq_base"));
  EXPECT_TRUE(keys.contains("llama.attention.layer_norm_rms_epsilon"));
  for (const auto& [key, value] : keys.items()) {
    EXPECT_FALSE(key.starts_with("tokenizer.")) << key;
    EXPECT_NE(key, "general.name");
  }
}

}  // namespace
}  // namespace sftrun::weights
