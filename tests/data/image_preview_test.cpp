#include <gtest/gtest.h>

#include "data/toy_vision_model.h"
#include "sftrun/core/error.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/preview.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

constexpr const char* kPicturedRecord =
    R"({"messages": [{"role": "user", "content": [{"type": "image", "path": "a.png"}, {"type": "text", "text": "q"}]},)"
    R"( {"role": "assistant", "content": "a"}]})";

/// A data set whose images are beside its file.
class PicturedData : public ::testing::Test {
 protected:
  PicturedData() {
    std::filesystem::copy_file(
        std::filesystem::path(SFTRUN_TEST_DATA) / "images" / "resize-37x29.png", dir_ / "a.png");
    write(kPicturedRecord);
    config_.model.max_seq_len = 512;
    config_.data.cache_dir = (dir_ / "cache").string();
  }
  void write(const std::string& lines) {
    write_file_atomically(dir_ / "data.jsonl", lines);
    source_.path = (dir_ / "data.jsonl").string();
  }
  Preview preview(const TextModel& model) const {
    return preview_dataset(config_, source_, /*is_validation=*/false, model, 10);
  }
  Dataset load(const TextModel& model) const {
    return load_dataset(config_, {source_}, /*is_validation=*/false, model, 1);
  }

  test::TemporaryDirectory dir_;
  config::RunConfig config_;
  config::DataSource source_;
  TextModel model_ = test::toy_vision_model();
};

TEST_F(PicturedData, IsPreviewed) {
  const Preview shown = preview(model_);
  const std::string text = preview_text(shown, model_, /*colour=*/false);
  EXPECT_NE(text.find("a.png, 37 x 29 pixels, 20 tokens"), std::string::npos) << text;
  EXPECT_NE(text.find("⟨<|image_pad|> x 20⟩"), std::string::npos) << text;
  const Json image = preview_json({shown}, model_)["data_sets"][0]["sequences"][0]["images"].at(0);
  EXPECT_EQ(image.at("file"), (dir_ / "a.png").string());
  EXPECT_EQ(image.at("width"), 37);
  EXPECT_EQ(image.at("num_tokens"), 20);
  const std::string page = preview_html({shown}, model_, "data");
  EXPECT_NE(page.find("src=\"data:;base64,iVBORw0KGgo"), std::string::npos);
  EXPECT_NE(page.find("37 x 29 pixels, 20 tokens"), std::string::npos);
}

TEST_F(PicturedData, IsCachedByTheProcessorsSettings) {
  EXPECT_EQ(load(model_).examples().media_of(0).at(0).num_tokens, 20);
  test::VisionFamily coarse = test::toy_qwen();
  coarse.files["preprocessor_config.json"]["max_pixels"] = 256;
  const Dataset again = load(test::toy_vision_model(coarse));
  EXPECT_LT(again.examples().media_of(0).at(0).num_tokens, 20);
  const Media cached = load(model_).examples().media_of(0).at(0).media;
  EXPECT_EQ(cached.path, (std::filesystem::canonical(dir_.path()) / "a.png").string());
  std::filesystem::remove(dir_ / "a.png");
  EXPECT_THROW(read_media(cached), DataError);
  test::expect_error([&] { load(model_); }, {"data.jsonl:1", "a.png"});
}

TEST_F(PicturedData, WithoutItsImageIsABadRecord) {
  write(
      std::string(kPicturedRecord) + "\n" +
      R"({"messages": [{"role": "user", "content": [{"type": "image", "path": "b.png"}]}, {"role": "assistant", "content": "a"}]})");
  test::expect_error([&] { load(model_); }, {"data.jsonl:2", "b.png"});
  config_.data.bad_records = config::BadRecords::kSkip;
  const Dataset data = load(model_);
  EXPECT_EQ(data.examples().size(), 1);
  EXPECT_EQ(data.stats().num_bad, 1);
}

/// Columns of datasets' images: scripts/fixtures/make_records.py.
TEST_F(PicturedData, OfTablesHoldsItsFiles) {
  const std::string file = read_text_file(dir_ / "a.png");
  for (const char* name : {"images.parquet", "images.arrow"}) {
    source_.path = SFTRUN_TEST_DATA "/records/" + std::string(name);
    const Dataset data = load(model_);
    const SequenceMedia image = data.examples().media_of(0).at(0);
    EXPECT_EQ(image.width, 37) << name;
    EXPECT_EQ(image.media.path, "");
    EXPECT_EQ(read_media(image.media), file);
    EXPECT_EQ(data.stats().num_label_tokens, 7);
  }
}

TEST_F(PicturedData, IsFoundBehindOtherRecords) {
  const std::string words =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"
      "\n";
  std::string many;
  for (int i = 0; i < 200; ++i) many += words;
  const auto begins = [&](int64_t num_records) {
    return begins_with_images(config_, {source_}, false, num_records);
  };
  write(many);
  EXPECT_FALSE(begins(1000));
  write(many + "{\n" + kPicturedRecord);
  EXPECT_TRUE(begins(1000));
  EXPECT_TRUE(begins(202));
  EXPECT_FALSE(begins(201));
  write(words + R"({"messages": [], "image": "a.png"})");
  EXPECT_TRUE(begins(1000));
}

TEST_F(PicturedData, IsTriedWithTheSizesOfItsImages) {
  write(
      std::string(kPicturedRecord) + "\n" +
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})");
  const DatasetTrial trial = try_dataset(config_, source_, /*is_validation=*/false, model_);
  using Sizes = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(trial.images, (std::vector<Sizes>{{{37, 29}}, {}}));
  EXPECT_EQ(trial.lengths.size(), 2U);
}

TEST(ImageCaps, LowerTheNumberOfTokens) {
  const test::TemporaryDirectory dir;
  const test::VisionFamily qwen = test::toy_qwen();
  for (const auto& [name, content] : qwen.files.items())
    write_file_atomically(dir / name, content.dump());
  const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::from_json(
      test::tokenizer_json(false, false, qwen.tokens).dump(), "tokenizer.json");
  config::DataConfig data;
  data.max_image_pixels = 256;
  const auto capped = image_input_of(dir.path(), tokenizer, image_caps(data));
  EXPECT_EQ(capped->processor.size.longest_edge, 256);
  EXPECT_NE(capped->fingerprint, image_input_of(dir.path(), tokenizer)->fingerprint);
  data.max_image_pixels = 1;
  test::expect_error<ConfigError>([&] { image_input_of(dir.path(), tokenizer, image_caps(data)); },
                                  {"data.max_image_pixels 1 is too low"});
  write_file_atomically(dir / "preprocessor_config.json",
                        R"({"image_processor_type": "CLIPImageProcessor"})");
  test::expect_error<ConfigError>([&] { image_input_of(dir.path(), tokenizer, image_caps(data)); },
                                  {"data.max_image_pixels has no effect on", "remove the setting"});
}

TEST(ImageCaps, HaveNoEffectOnModelsOfText) {
  config::DataConfig data;
  EXPECT_TRUE(idle_image_caps(test::toy_model(), data).empty());
  data.image_longest_edge = 100;
  ASSERT_EQ(idle_image_caps(test::toy_model(), data).size(), 1U);
  EXPECT_NE(idle_image_caps(test::toy_model(), data)[0].find("data.image_longest_edge"),
            std::string::npos);
  EXPECT_TRUE(idle_image_caps(test::toy_vision_model(), data).empty());
}

}  // namespace
}  // namespace sftrun::data
