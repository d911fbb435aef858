#pragma once

#include <functional>
#include <optional>
#include <span>

#include "sftrun/images/processor.h"

/// What an image processor makes of an image: first its sizes, by the header alone, then its values.
namespace sftrun::images {

/// One image made from another. Image 0 is the source, image n the result of step n - 1.
struct ImageStep {
  enum class Kind : uint8_t { kResize, kCrop, kPad };
  Kind kind;
  size_t of;              ///< the image that it is made of
  int64_t width, height;  ///< of the result
  /// kCrop: the corner in the image that it is made of. kPad: where that image is in the result.
  int64_t left = 0, top = 0;
  Colour colour = {};  ///< kPad: around it
};

/// A rectangle of an image; black outside of it.
struct ImageTile {
  size_t of;
  int64_t left = 0, top = 0;
};

/// Which of transformers' two implementations of a processor is followed.
enum class Backend : uint8_t {
  kPil,  ///< NumPy and Pillow: the classes whose names end in Pil
  /// torchvision: mean and std are multiplied by 1 / rescale_factor first; odd margins of a centre crop are elsewhere. Its resizing
  /// differs, too, and is a function that the caller passes (ProcessOptions).
  kTorchvision,
};

/// Patches as a vision tower takes them: [3, times, side, side] values each. The patches of merge x merge are consecutive, such squares from
/// the top left.
struct PatchForm {
  int64_t side = 0, merge = 1;
  bool is_channels_last = false;  ///< [side, side, 3]
};

/// What becomes of an image of a size.
struct ImagePlan {
  std::vector<ImageStep> steps;
  /// In the tower's order, all of `tile_width` x `tile_height` pixels.
  std::vector<ImageTile> tiles;
  int64_t tile_width = 0, tile_height = 0;
  /// Of the tiles beside the whole image; 0: the image is not divided.
  int64_t tile_rows = 0, tile_columns = 0;
  /// Patches of the image in time, height and width, for layouts of patches (Qwen's image_grid_thw); else 0.
  std::array<int64_t, 3> grid_thw{};
  /// Rows of `pixel_values`: patches or tiles.
  int64_t rows = 0;
  int64_t values_per_row = 0;
  /// Positions of the text that get features of this image, without markers around or between them. 0: the files do not say.
  int64_t num_tokens = 0;
  /// Pixtral: those positions as rows and columns; a marker follows each row.
  int64_t token_rows = 0, token_columns = 0;
  /// LLaVA-NeXT: rows and columns that are left of all tiles' patches together without what was padded.
  int64_t unpadded_rows = 0, unpadded_columns = 0;

  int64_t num_values() const { return rows * values_per_row; }
  /// In patches of a tower: of tiles without what is less than a patch at their right and bottom, which a tower's convolution leaves out, too.
  int64_t num_values(const PatchForm& form) const;
  /// As the reference has it, for one image.
  std::vector<int64_t> shape(const ImageProcessor& processor) const;
};

/// Sizes, tiles and numbers of tokens for an image of `width` x `height` pixels. Equal to those of `process`, which follows the plan.
/// @throws DataError if the processor refuses an image of this size
ImagePlan plan_image(const ImageProcessor& processor, int64_t width, int64_t height,
                     Backend backend = Backend::kPil);

/// Memory that is used again from one image to the next, by one thread at a time: new pages take longer to get than to fill.
struct ProcessMemory {
  std::vector<std::vector<Image>> made;  ///< of each frame, what the plan's steps give
  std::vector<Image> margins;            ///< of each frame, a tile that is not inside of its image
  ResizeMemory resizing;
};

struct ProcessOptions {
  Backend backend = Backend::kPil;
  /// The form of the values; none: the reference's. The sides of a tile, in whole patches, must be multiples of side * merge.
  std::optional<PatchForm> patches = {};
  ProcessMemory* memory = nullptr;  ///< null: of this call
  /// For another library's resizing; as images::resize.
  std::function<Image(const Image& image, int64_t width, int64_t height, Filter filter)> resize =
      {};
};

/// The values of one image.
struct ProcessedImage {
  ImagePlan plan;
  /// [plan.rows, plan.values_per_row] float32, laid out as row().layout says; Gemma 4 without the reference's padding to
  /// max_soft_tokens * pooling_kernel_size^2 patches.
  std::vector<float> values;
};

/// transformers' `pixel_values`, bit for bit with Backend::kPil:
///     rescale: float32(float64(x) * rescale_factor)   normalise: (x - float32(mean)) / float32(std) in float32
/// Where neither is done, the reference gives uint8; here those values are float32. Thread-safe; one thread.
ProcessedImage process(const ImageProcessor& processor, const Image& image,
                       const ProcessOptions& options = {});
/// The same into memory of the caller, with a plan of `plan_image` for this image's size and the same backend.
/// @param pixel_values plan.num_values() of them
void process(const ImageProcessor& processor, const ImagePlan& plan, const Image& image,
             std::span<float> pixel_values, const ProcessOptions& options = {});

}  // namespace sftrun::images
