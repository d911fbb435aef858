#include "planned_images.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "data/toy_vision_model.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::app {
namespace {

/// A folder with a tokenizer and Qwen's image processor in small, and a data set with images of 10 x 8 patches.
class ImagesOfData : public ::testing::Test {
 protected:
  ImagesOfData() {
    log::configure({.console = log::Level::kOff});
    const test::VisionFamily family = test::toy_qwen();
    write_file_atomically(dir_ / "tokenizer.json",
                          test::tokenizer_json(false, false, family.tokens).dump());
    const nlohmann::json texts = {{"bos_token", "<s>"},
                                  {"eos_token", "<|im_end|>"},
                                  {"chat_template", test::chat_ml_of_parts(family.image)}};
    write_file_atomically(dir_ / "tokenizer_config.json", texts.dump());
    for (const auto& [name, content] : family.files.items())
      write_file_atomically(dir_ / name, content.dump());
    const std::filesystem::path data = SFTRUN_TEST_DATA;
    std::filesystem::copy_file(data / "images" / "resize-37x29.png", dir_ / "a.png");
    arch_ = spec::ArchSpec::from_hf_config(
        nlohmann::json::parse(
            read_text_file(data / "spec/vision/released/qwen2.5-vl-3b.json"))["config"],
        "config.json");
    arch_.vision->patches.side = 4;
    config_.model.max_seq_len = 512;
    config_.data.packing = false;
    config_.data.train = {{.path = (dir_ / "data.jsonl").string()}};
  }
  void write(const std::vector<int>& images_of_records) {
    std::string lines;
    for (const int num_images : images_of_records) {
      nlohmann::json parts = {{{"type", "text"}, {"text", "q"}}};
      for (int i = 0; i < num_images; ++i) parts.push_back({{"type", "image"}, {"path", "a.png"}});
      const nlohmann::json record = {
          {"messages",
           {{{"role", "user"}, {"content", parts}}, {{"role", "assistant"}, {"content", "a"}}}}};
      lines += record.dump() + "\n";
    }
    write_file_atomically(dir_ / "data.jsonl", lines);
  }
  std::string plan() {
    devices_ = {};
    return plan_images_of_data(config_, dir_.path(), arch_, devices_);
  }
  std::string place() const { return config_.data.train[0].path; }

  test::TemporaryDirectory dir_;
  spec::ArchSpec arch_;
  config::RunConfig config_;
  plan::RunDevices devices_;
};

TEST_F(ImagesOfData, AreThoseOfTheLargestMicroBatch) {
  write({0, 1, 3, 2});
  EXPECT_EQ(plan(),
            "images: up to 37x29 pixels, at most 3 in an example, in the 4 records of " + place());
  EXPECT_TRUE(devices_.tower.is_loaded);
  EXPECT_EQ(devices_.images.patches, 3 * 80);
  EXPECT_EQ(devices_.images.tiles, 3);
  EXPECT_EQ(devices_.images.longest_tile, 80);
  config_.train.batch_size.value = 2;
  plan();
  EXPECT_EQ(devices_.images.patches, 2.5 * 80);
  config_.data.packing = true;
  plan();
  EXPECT_EQ(devices_.images.patches, 6 * 80) << "all records are in one sequence";
}

TEST_F(ImagesOfData, AreOfTheFirstRecords) {
  std::vector<int> many(1200, 0);
  many[990] = 2, many[1100] = 5;
  write(many);
  EXPECT_EQ(plan(),
            "images: up to 37x29 pixels, at most 2 in an example, in the first 1000 records of " +
                place());
  many[990] = 0;
  write(many);
  EXPECT_EQ(plan(), "");
  EXPECT_FALSE(devices_.tower.is_loaded);
}

TEST_F(ImagesOfData, FillSequencesIfTheDataCannotBeRead) {
  write({1, 1});
  std::filesystem::remove(dir_ / "a.png");
  const std::string text = plan();
  EXPECT_TRUE(text.starts_with("images: assumed to fill each sequence (the data were not read: "))
      << text;
  EXPECT_TRUE(devices_.tower.is_loaded);
  EXPECT_EQ(devices_.images.patches, 512 * 4);
  std::filesystem::remove(dir_ / "data.jsonl");
  EXPECT_EQ(plan(), "");
}

TEST_F(ImagesOfData, ReachWorkers) {
  plan::RunDevices devices;
  plan_images_of_launcher(to_text({.tiles = 2.5, .patches = 1000.0 / 3, .longest_tile = 80}),
                          config_, arch_, devices);
  EXPECT_TRUE(devices.tower.is_loaded);
  EXPECT_EQ(devices.images.tiles, 2.5);
  EXPECT_EQ(devices.images.patches, 1000.0 / 3);
  EXPECT_EQ(devices.images.longest_tile, 80);
  for (const char* text : {"", "1", "1,2", "1,2,x", "1,2,3,4"})
    test::expect_error<ConfigError>([&] { plan_images_of_launcher(text, config_, arch_, devices); },
                                    {"--images-of-bin"});
}

}  // namespace
}  // namespace sftrun::app
