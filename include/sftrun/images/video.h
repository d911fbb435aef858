#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "sftrun/core/name_list.h"
#include "sftrun/images/process.h"

/// Frames of videos: what video processors of transformers 5.23 do with them. These have torchvision's arithmetic alone (0.26 is
/// followed). Frames are used as they are given: the reference chooses frames of decoded videos, and of lists of image files none.
namespace sftrun::images {

enum class VideoKind : uint8_t {
  kQwen2Vl,  ///< Qwen2.5-VL: frames of one size within limits, pairs of which are patches
  kQwen3Vl,  ///< Qwen3-VL, Qwen3.5: the same with limits of all frames together
  kSmolVlm,  ///< SmolVLM2: each frame becomes one square
};

struct VideoProcessorRow;

/// A video processor with its settings. A row's defaults, then what the files say.
struct VideoProcessor {
  VideoKind kind = VideoKind::kQwen2Vl;
  /// The settings of a frame, which a processor of images has, too. kQwen3Vl: `size` limits the pixels of all frames.
  ImageProcessor frame;
  bool cap_pixels_per_frame = false;  ///< kQwen2Vl, kQwen3Vl
  int64_t max_video_tokens = 0;       ///< kQwen2Vl: of a video; kQwen3Vl: of a frame
  /// The user's limit of a frame's pixels after resizing; 0: none (kQwen3Vl).
  int64_t max_frame_pixels = 0;

  const VideoProcessorRow& row() const;
  /// Frames that become patches together; of an odd number the last one stands for the missing.
  int64_t frames_of_group() const { return frame.temporal_patch_size; }
  int64_t num_groups(int64_t num_frames) const {
    return (num_frames + frames_of_group() - 1) / frames_of_group();
  }
};

struct VideoProcessorRow {
  VideoKind kind;
  std::string_view type;  ///< `video_processor_type`
  NameList model_types;   ///< of config.json, where no file names a type
  ProcessorKind frame;    ///< whose layout, and whose readers of settings it has
  /// Keys that it reads, beside those of all processors.
  NameList keys;
  void (*defaults)(VideoProcessor& processor);
};

namespace defaults {

inline void qwen2_vl_video(VideoProcessor& video) {
  qwen2_vl(video.frame);
  video.frame.size = {.shortest_edge = 128 * 28 * 28, .longest_edge = 28 * 28 * 768};
  video.max_video_tokens = 128'000;
}

inline void qwen3_vl_video(VideoProcessor& video) {
  qwen2_vl(video.frame);
  video.frame.image_mean = video.frame.image_std = kHalves;
  video.frame.patch_size = 16;
  video.frame.size = {.shortest_edge = 128 * 32 * 32, .longest_edge = 32 * 32 * 768};
  video.max_video_tokens = 768;
}

inline void smol_vlm_video(VideoProcessor& video) {
  idefics3(video.frame);
  video.frame.do_image_splitting = false;
}

}  // namespace defaults

inline constexpr auto kVideoProcessors = std::to_array<VideoProcessorRow>({
    {.kind = VideoKind::kQwen2Vl,
     .type = "Qwen2VLVideoProcessor",
     .model_types = {"qwen2_vl", "qwen2_5_vl"},
     .frame = ProcessorKind::kQwen2Vl,
     .keys = {"size", "min_pixels", "max_pixels", "patch_size", "temporal_patch_size", "merge_size",
              "cap_pixels_per_frame", "max_video_tokens"},
     .defaults = defaults::qwen2_vl_video},
    {.kind = VideoKind::kQwen3Vl,
     .type = "Qwen3VLVideoProcessor",
     .model_types = {"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"},
     .frame = ProcessorKind::kQwen2Vl,
     .keys = {"size", "patch_size", "temporal_patch_size", "merge_size", "cap_pixels_per_frame",
              "max_video_tokens"},
     .defaults = defaults::qwen3_vl_video},
    {.kind = VideoKind::kSmolVlm,
     .type = "SmolVLMVideoProcessor",
     .model_types = {"smolvlm"},
     .frame = ProcessorKind::kIdefics3,
     .keys = {"size", "max_image_size"},
     .defaults = defaults::smol_vlm_video},
});
static_assert(are_in_order(kVideoProcessors, &VideoProcessorRow::kind));

inline const VideoProcessorRow& VideoProcessor::row() const {
  return kVideoProcessors[static_cast<size_t>(kind)];
}

/// The video processor of a model's folder, as transformers chooses it: `video_processor` of processor_config.json, else
/// video_preprocessor_config.json, else preprocessor_config.json. Keys that choose frames (`do_sample_frames`, `fps`, …) are passed over.
/// @param images of the same folder
/// @throws DataError if the folder has no such processor, it has no row, or a file has a key that is not known or an unfit value
VideoProcessor read_video_processor(const std::filesystem::path& folder,
                                    const ImageProcessor& images);

/// A processor whose frames are within a user's limits. Frames of kSmolVlm have one size, which no limit changes.
/// @throws ConfigError for a limit that is too low
VideoProcessor with_caps(VideoProcessor processor, const ImageCaps& caps);

/// What becomes of one group of a video's frames: all groups have the same plan. `grid_thw` is {1, height, width}.
/// @param width, height of each frame   @param num_frames of the video
/// @throws DataError if the processor refuses such a video
ImagePlan plan_frames(const VideoProcessor& processor, int64_t width, int64_t height,
                      int64_t num_frames);

/// The values of one group: transformers' `pixel_values_videos`, bit for bit if `resize` is torchvision's.
/// @param frames of one group, of the plan's size; the last one stands for those that are missing
/// @param resize as ProcessOptions::resize
ProcessedImage process_frames(
    const VideoProcessor& processor, const ImagePlan& plan, std::span<const Image> frames,
    const std::function<Image(const Image&, int64_t, int64_t, Filter)>& resize);
/// The same into memory of the caller.   @param options with torchvision's backend and resizing
void process_frames(const VideoProcessor& processor, const ImagePlan& plan,
                    std::span<const Image> frames, std::span<float> pixel_values,
                    const ProcessOptions& options);

}  // namespace sftrun::images
