#include "sftrun/images/video.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::images {
namespace {

using VideoTestJson = nlohmann::json;

constexpr const char *kVideoFile = "video_preprocessor_config.json",
                     *kImageFile = "preprocessor_config.json", *kConfigFile = "config.json";

/// The video processor of a folder with these files; it has an image processor, too.
VideoProcessor read_from(const VideoTestJson& files) {
  const test::TemporaryDirectory folder;
  for (const auto& [name, content] : files.items())
    write_file_atomically(folder / name, content.dump());
  return read_video_processor(folder.path(), read_processor(folder.path()));
}
std::string error_from(const VideoTestJson& files) {
  return test::error_of([&] { read_from(files); });
}

VideoTestJson qwen_files(const char* model_type, VideoTestJson settings) {
  return {{kImageFile, {{"image_processor_type", "Qwen2VLImageProcessorFast"}}},
          {kConfigFile, {{"model_type", model_type}}},
          {kVideoFile, std::move(settings)}};
}

TEST(VideoProcessors, AreThoseThatTransformersTakes) {
  EXPECT_EQ(
      read_from(qwen_files("qwen3_vl", {{"video_processor_type", "Qwen2VLVideoProcessor"}})).kind,
      VideoKind::kQwen2Vl);
  EXPECT_EQ(read_from(qwen_files("qwen3_5", {{"patch_size", 16}})).kind, VideoKind::kQwen3Vl);
  VideoTestJson files = qwen_files("qwen2_5_vl", {{"patch_size", 16}});
  files.erase(kVideoFile);  // then the images' file counts
  files[kImageFile]["max_pixels"] = 12845056;
  files[kImageFile]["min_pixels"] = 3136;
  const VideoProcessor old = read_from(files);
  EXPECT_EQ(old.kind, VideoKind::kQwen2Vl);
  EXPECT_EQ(old.frame.size.longest_edge, 12845056);
  EXPECT_EQ(old.frame.size.shortest_edge, 3136);
  files["processor_config.json"] = {
      {"video_processor", {{"video_processor_type", "Qwen3VLVideoProcessor"}, {"merge_size", 1}}}};
  const VideoProcessor nested = read_from(files);
  EXPECT_EQ(nested.kind, VideoKind::kQwen3Vl);
  EXPECT_EQ(nested.frame.merge_size, 1);
  EXPECT_EQ(nested.frame.patch_size, 16);
  EXPECT_EQ(nested.frame.image_mean, kHalves);
}

TEST(VideoProcessors, TakeTheSizeOfSamplingIfThereIsNoOther) {
  VideoTestJson files = {
      {kImageFile,
       {{"image_processor_type", "SmolVLMImageProcessor"},
        {"max_image_size", {{"longest_edge", 512}}},
        {"video_sampling",
         {{"fps", 1}, {"max_frames", 64}, {"video_size", {{"longest_edge", 256}}}}}}},
      {kConfigFile, {{"model_type", "smolvlm"}}}};
  EXPECT_EQ(read_from(files).frame.size.longest_edge, 256);
  files[kImageFile]["size"] = {{"longest_edge", 2048}};
  const VideoProcessor video = read_from(files);
  EXPECT_EQ(video.frame.size.longest_edge, 2048);
  EXPECT_EQ(video.frame.max_image_size, 512);
  const ImagePlan plan = plan_frames(video, 640, 481, 9);
  EXPECT_EQ(plan.rows, 1);
  EXPECT_EQ(plan.tile_width, 512);
  ASSERT_EQ(plan.steps.size(), 2U);
  EXPECT_EQ(plan.steps[0].height, 1540);  // 1539.2, and then even
}

TEST(VideoProcessors, RefuseWhatTheyDoNotKnow) {
  EXPECT_NE(error_from(qwen_files("qwen3_vl", {{"sharpen", true}})).find("`sharpen` is not known"),
            std::string::npos);
  EXPECT_NE(error_from(qwen_files("qwen3_vl", {{"min_pixels", 9}})).find("`min_pixels` is not"),
            std::string::npos);
  EXPECT_NE(error_from(qwen_files("qwen3_vl", {{"resample", 2}})).find("`resample` is bilinear"),
            std::string::npos);
  EXPECT_NE(error_from(qwen_files("qwen3_vl", {{"patch_size", "a"}})).find(kVideoFile),
            std::string::npos);
  const std::string other =
      error_from({{kImageFile, {{"image_processor_type", "Gemma3ImageProcessor"}}},
                  {kConfigFile, {{"model_type", "gemma3"}}}});
  EXPECT_NE(other.find("videos are not read for models with the image processor of Gemma 3"),
            std::string::npos)
      << other;
  EXPECT_NE(other.find("give the frames as images"), std::string::npos);
}

TEST(VideoPlans, KeepTheLimitsOfAllFrames) {
  const VideoProcessor qwen3 = read_from(
      qwen_files("qwen3_vl", {{"size", {{"shortest_edge", 4096}, {"longest_edge", 1'048'576}}}}));
  const auto area = [](const ImagePlan& plan) { return plan.tile_width * plan.tile_height; };
  EXPECT_EQ(area(plan_frames(qwen3, 512, 512, 2)), 512 * 512);
  EXPECT_LE(16 * area(plan_frames(qwen3, 512, 512, 16)), 1'048'576);
  const VideoProcessor capped = with_caps(qwen3, {.max_pixels = 100'000, .longest_edge = 300});
  for (const int64_t frames : {2, 3, 5, 8}) {
    const ImagePlan plan = plan_frames(capped, 640, 320, frames);
    EXPECT_LE(area(plan), 100'000);
    EXPECT_LE(plan.tile_width, 300);
    EXPECT_EQ(plan.grid_thw[0], 1);
  }
  EXPECT_THROW(with_caps(qwen3, {.max_pixels = 100}), ConfigError);
  test::expect_error<DataError>([&] { plan_frames(qwen3, 512, 512, 1); },
                                {"a video of 1 frame is refused"});
  const VideoProcessor qwen2 = read_from(qwen_files("qwen2_5_vl", {{"patch_size", 14}}));
  EXPECT_LE(area(plan_frames(with_caps(qwen2, {.max_pixels = 50'000}), 999, 999, 1)), 50'000);
}

TEST(VideoValues, HaveTheLastFrameForOneThatIsMissing) {
  VideoProcessor video = read_from(qwen_files("qwen2_5_vl", {{"patch_size", 1},
                                                             {"merge_size", 1},
                                                             {"do_resize", false},
                                                             {"do_rescale", false},
                                                             {"do_normalize", false}}));
  Image first(1, 1), second(1, 1);
  first.pixels = {1, 2, 3}, second.pixels = {4, 5, 6};
  const ImagePlan plan = plan_frames(video, 1, 1, 3);
  const auto values = [&](const std::vector<Image>& frames) {
    const ProcessedImage processed = process_frames(video, plan, frames, {});
    return processed.values;
  };
  EXPECT_EQ(values({first, second}), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(values({second}), (std::vector<float>{4, 4, 5, 5, 6, 6}));
}

}  // namespace
}  // namespace sftrun::images
