#include <algorithm>
#include <iterator>

#include "sftrun/core/error.h"
#include "sftrun/images/processor.h"
#include "sftrun/images/video.h"

namespace sftrun::images {

namespace {

[[noreturn]] void refuse_cap(const ImageProcessor& processor, std::string_view cap,
                             const std::string& why, const std::string& fix) {
  throw ConfigError(
      fmt::format("{} {} the image processor of {}", cap, why, processor.row().family),
      processor.where, fix);
}

void lower_pixels(ImageProcessor& processor, int64_t most) {
  const auto require = [&](int64_t least) {
    if (most < least)
      refuse_cap(processor, kMaxPixelsCap, fmt::format("{} is too low for", most),
                 fmt::format("set it to {} or more", least));
  };
  if (processor.kind == ProcessorKind::kQwen2Vl) {
    const int64_t side = processor.patch_size * processor.merge_size;
    require(side * side);
    processor.size.longest_edge = std::min(processor.size.longest_edge, most);
    processor.size.shortest_edge = std::min(processor.size.shortest_edge, most);
  } else if (processor.kind == ProcessorKind::kGemma4) {
    const int64_t side = processor.patch_size * processor.pooling_kernel_size;
    require(kSoftTokens.front() * side * side);
    const int64_t fitting = std::min(processor.max_soft_tokens, most / (side * side));
    processor.max_soft_tokens =
        *std::prev(std::upper_bound(kSoftTokens.begin(), kSoftTokens.end(), fitting));
  } else {
    const int64_t tile = processor.size.width * processor.size.height;
    require(tile);
    processor.max_patches = std::min(processor.max_patches, most / tile);
    processor.min_patches = std::min(processor.min_patches, processor.max_patches);
  }
}

void lower_longest_edge(ImageProcessor& processor, int64_t most) {
  if (processor.kind == ProcessorKind::kQwen2Vl) {
    const int64_t side = processor.patch_size * processor.merge_size;
    if (most < side)
      refuse_cap(processor, kLongestEdgeCap, fmt::format("{} is too low for", most),
                 fmt::format("set it to {} or more", side));
    processor.longest_side =
        processor.longest_side > 0 ? std::min(processor.longest_side, most) : most;
  } else if (processor.size.longest_edge > 0) {
    processor.size.longest_edge = std::min(processor.size.longest_edge, most);
  } else {
    processor.size.width = std::min(processor.size.width, most);
    processor.size.height = std::min(processor.size.height, most);
  }
}

}  // namespace

ImageProcessor with_caps(ImageProcessor processor, const ImageCaps& caps) {
  const CapUse use = processor.row().caps;
  const std::string fix = "remove the setting: the model sets the size of its images";
  if (caps.max_pixels > 0) {
    if (!use.max_pixels) refuse_cap(processor, kMaxPixelsCap, "has no effect on", fix);
    lower_pixels(processor, caps.max_pixels);
  }
  if (caps.longest_edge > 0) {
    if (!use.longest_edge) refuse_cap(processor, kLongestEdgeCap, "has no effect on", fix);
    lower_longest_edge(processor, caps.longest_edge);
  }
  return processor;
}

VideoProcessor with_caps(VideoProcessor processor, const ImageCaps& caps) {
  if (processor.kind == VideoKind::kSmolVlm) return processor;
  ImageCaps of_frame = caps;
  if (processor.kind == VideoKind::kQwen3Vl) {  // its `size` is of all frames
    if (caps.max_pixels > 0) {
      ImageProcessor checked = processor.frame;
      lower_pixels(checked, caps.max_pixels);
    }
    processor.max_frame_pixels = caps.max_pixels;
    of_frame.max_pixels = 0;
  }
  processor.frame = with_caps(std::move(processor.frame), of_frame);
  return processor;
}

}  // namespace sftrun::images
