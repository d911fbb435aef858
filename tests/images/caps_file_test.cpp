#include "sftrun/images/caps_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/images/video.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::images {
namespace {

using CapsJson = nlohmann::json;

constexpr const char *kImages = "preprocessor_config.json", *kBoth = "processor_config.json",
                     *kVideos = "video_preprocessor_config.json", *kModel = "config.json";

void write_files(const std::filesystem::path& folder, const CapsJson& files) {
  for (const auto& [name, content] : files.items())
    write_file_atomically(folder / name, content.dump());
}
CapsJson read_json(const std::filesystem::path& file) {
  return CapsJson::parse(read_text_file(file));
}

/// A model's folder, and a copy of its small files that gets the limits.
struct CopiedModel {
  explicit CopiedModel(const CapsJson& files, ImageCaps with) : caps(with) {
    write_files(model.path(), files);
    CapsJson copied = files;
    copied.erase(kModel);  // adapters have none
    write_files(copy.path(), copied);
    lower_limits(copy.path(), model.path(), caps);
  }
  /// The copy as the model's own files: the processor has the limits without being told.
  void expect_limits_in_files() const {
    if (std::filesystem::exists(model / kModel))
      write_file_atomically(copy / kModel, read_text_file(model / kModel));
    const ImageProcessor told = with_caps(read_processor(model.path()), caps),
                         read = read_processor(copy.path());
    EXPECT_EQ(read.size, told.size);
    EXPECT_EQ(read.max_soft_tokens, told.max_soft_tokens);
    EXPECT_EQ(read.min_patches, told.min_patches);
    EXPECT_EQ(read.max_patches, told.max_patches);
    const ImageProcessor twice = with_caps(read, caps);
    EXPECT_EQ(twice.size, told.size) << "the limit of a limited processor";
    EXPECT_EQ(twice.max_soft_tokens, told.max_soft_tokens);
  }
  test::TemporaryDirectory model, copy;
  ImageCaps caps;
};

TEST(ImageLimits, AreInTheKeysOfEachProcessor) {
  const auto check = [](const char* type, const CapsJson& settings, ImageCaps caps) {
    SCOPED_TRACE(type);
    CapsJson own = settings;
    own["image_processor_type"] = type;
    CopiedModel({{kImages, own}}, caps).expect_limits_in_files();
    CopiedModel nested({{kBoth, {{"image_processor", own}, {"image_seq_len", 4}}}}, caps);
    nested.expect_limits_in_files();
    EXPECT_EQ(read_json(nested.copy / kBoth)["image_seq_len"], 4);
  };
  check("Qwen2VLImageProcessor", {{"size", {{"shortest_edge", 3136}, {"longest_edge", 1003520}}}},
        {.max_pixels = 200704});
  check("Qwen2VLImageProcessor", CapsJson::object(), {.max_pixels = 2000});
  check("Qwen2VLImageProcessorFast", {{"min_pixels", 3136}, {"max_pixels", 12845056}},
        {.max_pixels = 200704});
  check("Gemma4ImageProcessor", {{"max_soft_tokens", 280}}, {.max_pixels = 330000});
  check("Idefics3ImageProcessor", {{"size", {{"longest_edge", 1456}}}}, {.longest_edge = 728});
  check("PixtralImageProcessor", {{"size", {{"longest_edge", 1540}}}, {"patch_size", 14}},
        {.longest_edge = 700});
  check("PixtralImageProcessor", {{"size", {{"height", 1024}, {"width", 900}}}, {"patch_size", 16}},
        {.longest_edge = 700});
  check("GotOcr2ImageProcessor", {{"size", {{"height", 448}, {"width", 448}}}},
        {.max_pixels = 3 * 448 * 448});
}

/// Videos have limits of their own, and must not get those of images by sharing a file with them.
TEST(ImageLimits, OfVideosAreThoseOfTheRun) {
  const auto frames_of = [](const std::filesystem::path& folder) {
    return read_video_processor(folder, read_processor(folder));
  };
  const auto check = [&](const CapsJson& files, const ImageCaps& caps) {
    CopiedModel copied(files, caps);
    copied.expect_limits_in_files();
    const VideoProcessor told = with_caps(frames_of(copied.model.path()), caps),
                         read = frames_of(copied.copy.path());
    EXPECT_EQ(read.kind, told.kind);
    EXPECT_EQ(read.frame.size, told.frame.size);
  };
  const CapsJson images = {{"image_processor_type", "Qwen2VLImageProcessor"}};
  const ImageCaps caps = {.max_pixels = 200704};
  for (const char* model : {"qwen2_5_vl", "qwen3_vl"}) {
    SCOPED_TRACE(model);
    const CapsJson config = {{"model_type", model}};
    check({{kImages, images}, {kModel, config}}, caps);
    check({{kImages, images}, {kModel, config}, {kVideos, {{"patch_size", 16}}}}, caps);
    check(
        {{kImages, images}, {kModel, config}, {kBoth, {{"video_processor", {{"merge_size", 2}}}}}},
        caps);
  }
  check({{kImages,
          {{"image_processor_type", "SmolVLMImageProcessor"}, {"size", {{"longest_edge", 1456}}}}},
         {kModel, {{"model_type", "smolvlm"}}}},
        {.longest_edge = 728});
}

TEST(ImageLimits, ThatNoProcessorOfTransformersHasAreNamed) {
  const CopiedModel copied({{kImages, {{"image_processor_type", "Qwen2VLImageProcessor"}}}},
                           {.max_pixels = 200704, .longest_edge = 448});
  const ImageProcessor qwen = read_processor(copied.model.path());
  EXPECT_TRUE(unwritten_limits(qwen, copied.caps).longest_edge);
  EXPECT_FALSE(unwritten_limits(qwen, copied.caps).max_pixels);
  EXPECT_FALSE(unwritten_limits(qwen, {.max_pixels = 200704}).longest_edge);
  EXPECT_EQ(words_of(copied.caps), "data.max_image_pixels 200704, data.image_longest_edge 448");
  copied.expect_limits_in_files();
}

TEST(ImageLimits, ARunWithoutLimitsChangesNoFile) {
  const CopiedModel copied({{kImages, {{"image_processor_type", "Qwen2VLImageProcessor"}}}}, {});
  EXPECT_EQ(read_text_file(copied.copy / kImages), read_text_file(copied.model / kImages));
  const test::TemporaryDirectory empty;
  write_caps(empty.path(), {});
  EXPECT_TRUE(std::filesystem::is_empty(empty.path()));
}

TEST(ImageLimits, AreReadAsTheyWereWritten) {
  const test::TemporaryDirectory folder;
  EXPECT_FALSE(read_caps(folder.path()).any());
  EXPECT_FALSE(read_caps(folder / "no-folder").any());
  for (const ImageCaps& caps : {ImageCaps{.max_pixels = 200704}, ImageCaps{.longest_edge = 7},
                                ImageCaps{.max_pixels = 1, .longest_edge = 2}}) {
    write_caps(folder.path(), caps);
    EXPECT_EQ(read_caps(folder.path()), caps);
  }
  for (const char* damaged :
       {"[]", "{", R"({"max_image_pixels": 0})", R"({"max_image_pixels": "many"})"}) {
    write_file_atomically(folder / "sftrun_images.json", damaged);
    test::expect_error<DataError>([&] { read_caps(folder.path()); }, {"sftrun_images.json"});
  }
}

}  // namespace
}  // namespace sftrun::images
