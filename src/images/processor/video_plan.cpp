// The sizes of frames, after transformers' models/*/video_processing_*.py.
#include <algorithm>
#include <utility>

#include "plan_builder.h"
#include "sftrun/core/error.h"
#include "sftrun/images/video.h"

namespace sftrun::images {

namespace {

int64_t part_of_number(int64_t number, double factor) {
  return static_cast<int64_t>(static_cast<double>(number) * factor);
}

/// Pixels of a token.
int64_t token_area(const ImageProcessor& frame) {
  const int64_t side = frame.patch_size * frame.merge_size;
  return side * side;
}

/// Qwen2-VL's limit of a frame.
int64_t max_pixels_of_frame(const VideoProcessor& video, int64_t num_frames) {
  const ImageProcessor& frame = video.frame;
  if (!video.cap_pixels_per_frame) return frame.size.longest_edge;
  const int64_t total = part_of_number(video.max_video_tokens * token_area(frame), 0.9);
  return std::max(std::min(frame.size.longest_edge, total * frame.temporal_patch_size / num_frames),
                  part_of_number(frame.size.shortest_edge, 1.05));
}

/// Qwen3-VL's limit of all frames, and the user's.
int64_t max_pixels_of_video(const VideoProcessor& video, int64_t num_frames) {
  const ImageProcessor& frame = video.frame;
  int64_t most = frame.size.longest_edge;
  if (video.cap_pixels_per_frame)
    most = num_frames *
           std::max(std::min(video.max_video_tokens * token_area(frame), most / num_frames),
                    part_of_number(frame.size.shortest_edge, 1.05));
  // The reference's count of pixels may have a frame less than there are.
  const int64_t counted_frames = num_frames / frame.temporal_patch_size * frame.temporal_patch_size;
  return video.max_frame_pixels > 0
             ? std::min(most, std::max<int64_t>(1, counted_frames) * video.max_frame_pixels)
             : most;
}

}  // namespace

ImagePlan plan_frames(const VideoProcessor& video, int64_t width, int64_t height,
                      int64_t num_frames) {
  SFTRUN_CHECK(width > 0 && height > 0 && num_frames > 0);
  if (video.kind == VideoKind::kQwen2Vl) {
    ImageProcessor frame = video.frame;
    frame.size.longest_edge = max_pixels_of_frame(video, num_frames);
    return plan_image(frame, width, height, Backend::kTorchvision);
  }
  PlanBuilder builder(video.frame, {width, height}, Backend::kTorchvision);
  if (video.kind == VideoKind::kSmolVlm) {
    plan_smol_vlm_frame(builder);
    return finished_plan(builder);
  }
  if (num_frames < video.frames_of_group())
    throw DataError(fmt::format("a video of {} frame is refused: the processor needs {} or more",
                                num_frames, video.frames_of_group()),
                    video.frame.where, "give more frames, or give the frame as an image");
  plan_qwen3_vl_frame(builder, num_frames, max_pixels_of_video(video, num_frames));
  return finished_plan(builder);
}

}  // namespace sftrun::images
