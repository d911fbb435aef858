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

Image made(const ImageStep& step, const Image& from, const ProcessOptions& options, Filter filter) {
  switch (step.kind) {
    case ImageStep::Kind::kResize:
      return options.resize ? options.resize(from, step.width, step.height, filter)
                            : resize(from, step.width, step.height, filter);
    case ImageStep::Kind::kCrop:
      return crop(from, step.left, step.top, step.width, step.height);
    case ImageStep::Kind::kPad:
      return pad(from, step.left, step.top, step.width - from.width - step.left,
                 step.height - from.height - step.top, step.colour);
  }
  return {};
}

/// The images of a plan's steps; 0 is the source.
class PlannedImages {
 public:
  PlannedImages(const ImageProcessor& processor, const ImagePlan& plan, const Image& source,
                const ProcessOptions& options)
      : source_(source) {
    made_.reserve(plan.steps.size());
    for (const ImageStep& step : plan.steps) {
      made_.push_back(made(step, (*this)[step.of], options, processor.resample));
      SFTRUN_CHECK(made_.back().width == step.width && made_.back().height == step.height);
    }
  }
  const Image& operator[](size_t number) const { return number == 0 ? source_ : made_[number - 1]; }

 private:
  const Image& source_;
  std::vector<Image> made_;
};

/// @param frames the tile in each frame; of an image one
void write_tile(const ImageProcessor& processor, std::span<const TilePixels> frames,
                const ColourRows& colours, float* to) {
  switch (processor.row().layout) {
    case PixelLayout::kPlanes:
      return write_planes(frames[0], colours, to);
    case PixelLayout::kChannelLast:
      return write_channel_last(frames[0], colours, processor.patch_size, to);
    case PixelLayout::kMergeBlocks:
      return write_merge_blocks(frames, colours, processor.patch_size, processor.merge_size,
                                processor.temporal_patch_size, to);
  }
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
  margins = crop(of, tile.left, tile.top, plan.tile_width, plan.tile_height);
  return {margins.pixels.data(), plan.tile_width * 3, plan.tile_width, plan.tile_height};
}

/// @param frames of one size; only patches of several frames have more than one
void process_all(const ImageProcessor& processor, const ImagePlan& plan,
                 std::span<const Image> frames, std::span<float> pixel_values,
                 const ProcessOptions& options) {
  SFTRUN_CHECK_EQ(static_cast<int64_t>(pixel_values.size()), plan.num_values());
  const ColourRows colours = colours_of(processor, options.backend);
  std::vector<PlannedImages> images;
  images.reserve(frames.size());
  for (const Image& frame : frames) images.emplace_back(processor, plan, frame, options);
  const int64_t values = plan.num_values() / static_cast<int64_t>(plan.tiles.size());
  float* to = pixel_values.data();
  std::vector<Image> margins(frames.size());
  std::vector<TilePixels> pixels(frames.size());
  for (const ImageTile& tile : plan.tiles) {
    for (size_t frame = 0; frame < frames.size(); ++frame)
      pixels[frame] = pixels_of(tile, plan, images[frame][tile.of], margins[frame]);
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
  SFTRUN_CHECK(!frames.empty() &&
               static_cast<int64_t>(frames.size()) <= processor.frames_of_group());
  ProcessedImage result{.plan = plan, .pixel_values = nullptr};
  const auto count = static_cast<size_t>(plan.num_values());
  result.pixel_values = values_without_content(count);
  process_all(processor.frame, plan, frames, {result.pixel_values.get(), count},
              {.backend = Backend::kTorchvision, .resize = resize});
  return result;
}

}  // namespace sftrun::images
