#include "sftrun/images/process.h"

#include <algorithm>
#include <vector>

#include "colours.h"
#include "sftrun/core/error.h"
#include "sftrun/images/video.h"

namespace sftrun::images {

namespace {

void make(const ImageStep& step, const Image& from, const ProcessOptions& options, Filter filter,
          Image& to, ResizeMemory& resizing) {
  switch (step.kind) {
    case ImageStep::Kind::kResize:
      if (options.resize) {
        to = options.resize(from, step.width, step.height, filter);
        return;
      }
      return resize(from, step.width, step.height, filter, to, resizing);
    case ImageStep::Kind::kCrop:
      return crop(from, step.left, step.top, step.width, step.height, to);
    case ImageStep::Kind::kPad:
      return pad(from, step.left, step.top, step.width - from.width - step.left,
                 step.height - from.height - step.top, step.colour, to);
  }
}

/// The images of a plan's steps; 0 is the source.
class PlannedImages {
 public:
  /// @param made gets what the steps give
  PlannedImages(const ImageProcessor& processor, const ImagePlan& plan, const Image& source,
                const ProcessOptions& options, std::vector<Image>& made, ResizeMemory& resizing)
      : source_(source), made_(made) {
    made_.resize(std::max(made_.size(), plan.steps.size()));
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const ImageStep& step = plan.steps[i];
      make(step, (*this)[step.of], options, processor.resample, made_[i], resizing);
      SFTRUN_CHECK(made_[i].width == step.width && made_[i].height == step.height);
    }
  }
  const Image& operator[](size_t number) const { return number == 0 ? source_ : made_[number - 1]; }

 private:
  const Image& source_;
  std::vector<Image>& made_;
};

/// @param frames the tile in each frame; of an image one
void write_tile(const ImageProcessor& processor, std::span<const TilePixels> frames,
                const ColourRows& colours, float* to) {
  switch (processor.row().layout) {
    case PixelLayout::kPlanes:
      return write_planes(frames[0], colours, to);
    case PixelLayout::kChannelLast:
      return write_channel_last(frames[0], colours, {.side = processor.patch_size}, to);
    case PixelLayout::kMergeBlocks:
      return write_merge_blocks(frames, colours, {processor.patch_size, processor.merge_size},
                                processor.temporal_patch_size, to);
  }
}

/// @param frames loses what is less than a patch
void write_tile_in_patches(const ImageProcessor& processor, std::span<TilePixels> frames,
                           const ColourRows& colours, const PatchForm& form, float* to) {
  for (TilePixels& tile : frames)
    tile.width -= tile.width % form.side, tile.height -= tile.height % form.side;
  SFTRUN_CHECK(frames[0].width % (form.side * form.merge) == 0 &&
               frames[0].height % (form.side * form.merge) == 0);
  if (form.is_channels_last) return write_channel_last(frames[0], colours, form, to);
  const bool has_times = processor.row().layout == PixelLayout::kMergeBlocks;
  write_merge_blocks(frames, colours, form, has_times ? processor.temporal_patch_size : 1, to);
}

bool is_inside(const ImageTile& tile, const ImagePlan& plan, const Image& image) {
  return tile.left >= 0 && tile.top >= 0 && tile.left + plan.tile_width <= image.width &&
         tile.top + plan.tile_height <= image.height;
}

/// @param margins holds the pixels of a tile that is not inside of its image
TilePixels pixels_of(const ImageTile& tile, const ImagePlan& plan, const Image& of,
                     Image& margins) {
  if (is_inside(tile, plan, of))
    return {of.row(tile.top) + tile.left * 3, of.width * 3, plan.tile_width, plan.tile_height};
  crop(of, tile.left, tile.top, plan.tile_width, plan.tile_height, margins);
  return {margins.pixels.data(), plan.tile_width * 3, plan.tile_width, plan.tile_height};
}

/// @param frames of one size; only patches of several frames have more than one
void process_all(const ImageProcessor& processor, const ImagePlan& plan,
                 std::span<const Image> frames, std::span<float> pixel_values,
                 const ProcessOptions& options) {
  const int64_t all_values =
      options.patches ? plan.num_values(*options.patches) : plan.num_values();
  SFTRUN_CHECK_EQ(static_cast<int64_t>(pixel_values.size()), all_values);
  const ColourRows colours = colours_of(processor, options.backend);
  ProcessMemory of_call;
  ProcessMemory& memory = options.memory ? *options.memory : of_call;
  memory.made.resize(std::max(memory.made.size(), frames.size()));
  memory.margins.resize(std::max(memory.margins.size(), frames.size()));
  std::vector<PlannedImages> images;
  images.reserve(frames.size());
  for (size_t i = 0; i < frames.size(); ++i)
    images.emplace_back(processor, plan, frames[i], options, memory.made[i], memory.resizing);
  const int64_t values = all_values / static_cast<int64_t>(plan.tiles.size());
  float* to = pixel_values.data();
  std::vector<TilePixels> pixels(frames.size());
  for (const ImageTile& tile : plan.tiles) {
    for (size_t frame = 0; frame < frames.size(); ++frame)
      pixels[frame] = pixels_of(tile, plan, images[frame][tile.of], memory.margins[frame]);
    if (options.patches)
      write_tile_in_patches(processor, pixels, colours, *options.patches, to);
    else
      write_tile(processor, pixels, colours, to);
    to += values;
  }
}

}  // namespace

void process(const ImageProcessor& processor, const ImagePlan& plan, const Image& image,
             std::span<float> pixel_values, const ProcessOptions& options) {
  process_all(processor, plan, {&image, 1}, pixel_values, options);
}

ProcessedImage process(const ImageProcessor& processor, const Image& image,
                       const ProcessOptions& options) {
  ProcessedImage result{.plan = plan_image(processor, image.width, image.height, options.backend)};
  result.values.resize(static_cast<size_t>(result.plan.num_values()));
  process(processor, result.plan, image, result.values, options);
  return result;
}

ProcessedImage process_frames(
    const VideoProcessor& processor, const ImagePlan& plan, std::span<const Image> frames,
    const std::function<Image(const Image&, int64_t, int64_t, Filter)>& resize) {
  ProcessedImage result{.plan = plan};
  result.values.resize(static_cast<size_t>(plan.num_values()));
  process_frames(processor, plan, frames, result.values,
                 {.backend = Backend::kTorchvision, .resize = resize});
  return result;
}

void process_frames(const VideoProcessor& processor, const ImagePlan& plan,
                    std::span<const Image> frames, std::span<float> pixel_values,
                    const ProcessOptions& options) {
  SFTRUN_CHECK(!frames.empty() &&
               static_cast<int64_t>(frames.size()) <= processor.frames_of_group());
  process_all(processor.frame, plan, frames, pixel_values, options);
}

}  // namespace sftrun::images
