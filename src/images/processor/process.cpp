#include "sftrun/images/process.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
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

void write_tile_in_patches(const ImageProcessor& processor, std::span<const TilePixels> frames,
                           const ColourRows& colours, const PatchForm& form, float* to) {
  const int64_t block = form.side * form.merge;
  SFTRUN_CHECK(frames[0].width % block == 0 && frames[0].height % block == 0);
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
  SFTRUN_CHECK_EQ(static_cast<int64_t>(pixel_values.size()), plan.num_values());
  const ColourRows colours = colours_of(processor, options.backend);
  ProcessMemory of_call;
  ProcessMemory& memory = options.memory ? *options.memory : of_call;
  memory.made.resize(std::max(memory.made.size(), frames.size()));
  memory.margins.resize(std::max(memory.margins.size(), frames.size()));
  std::vector<PlannedImages> images;
  images.reserve(frames.size());
  for (size_t i = 0; i < frames.size(); ++i)
    images.emplace_back(processor, plan, frames[i], options, memory.made[i], memory.resizing);
  const int64_t values = plan.num_values() / static_cast<int64_t>(plan.tiles.size());
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

void FreeValues::operator()(float* values) const {
  std::free(values);
}

namespace {

PixelValues values_without_content(size_t count) {
  constexpr size_t kHugePage = size_t{1} << 21;
  // malloc keeps smaller blocks and gives them again; larger ones are always new (DEFAULT_MMAP_THRESHOLD_MAX of glibc).
  constexpr size_t kAlwaysNew = size_t{32} << 20;
  const size_t bytes = std::max<size_t>(1, count) * sizeof(float);
  const bool is_large = bytes > kAlwaysNew;
  const size_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* block = is_large ? std::aligned_alloc(kHugePage, whole) : std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
  if (is_large) ::madvise(block, whole, MADV_HUGEPAGE);  // only advice
  return PixelValues(static_cast<float*>(block));
}

}  // namespace

ProcessedImage process(const ImageProcessor& processor, const Image& image,
                       const ProcessOptions& options) {
  ProcessedImage result{.plan = plan_image(processor, image.width, image.height, options.backend),
                        .pixel_values = nullptr};
  const auto count = static_cast<size_t>(result.plan.num_values());
  result.pixel_values = values_without_content(count);
  process(processor, result.plan, image, {result.pixel_values.get(), count}, options);
  return result;
}

ProcessedImage process_frames(
    const VideoProcessor& processor, const ImagePlan& plan, std::span<const Image> frames,
    const std::function<Image(const Image&, int64_t, int64_t, Filter)>& resize) {
  ProcessedImage result{.plan = plan, .pixel_values = nullptr};
  const auto count = static_cast<size_t>(plan.num_values());
  result.pixel_values = values_without_content(count);
  process_frames(processor, plan, frames, {result.pixel_values.get(), count},
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
