#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/name_list.h"
#include "sftrun/core/rows.h"
#include "sftrun/images/transform.h"

/// Image processors of vision-language models, as transformers 5.23 has them: what their files say. process.h applies them.
/// One row for each kind: its names, keys, defaults and the layout of its values.
namespace sftrun::images {

enum class ProcessorKind {
  kQwen2Vl,    ///< Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5: patches of a size near the image's own
  kGemma3,     ///< one fixed size; crops if the caller asks for them (pan and scan)
  kGemma4,     ///< patches that fill a number of tokens
  kIdefics3,   ///< Idefics 3, SmolVLM: tiles and the whole image
  kClip,       ///< shortest edge, and the middle of the image
  kSiglip,     ///< one fixed size
  kLlava,      ///< as CLIP, and optionally a square around the image before
  kLlavaNext,  ///< the whole image, and tiles of the best of some resolutions
  kPixtral,    ///< one image of whole patches
  kInternVl,   ///< GotOcr2: tiles of the best grid, and the whole image
};

/// Where a value of a patch or tile is.
enum class PixelLayout : uint8_t {
  kPlanes,       ///< [tiles, 3, height, width]
  kChannelLast,  ///< [patches, patch, patch, 3], rows of patches from the top
  /// [patches, 3, temporal, patch, patch], the frame repeated; the patches of a block of merge_size x merge_size are consecutive.
  kMergeBlocks,
};

/// How many tokens the text gets for an image.
enum class TokenRule : uint8_t {
  kMergedPatches,  ///< patches / merge_size^2, or pooling_kernel_size^2
  kPerTile,        ///< image_seq_length for each tile
  kPatchGrid,      ///< patches of the tile, and the class token if the model keeps it
  kUnpadded,  ///< LLaVA-NeXT: those, and the tiles without what was padded, with an end of each row
};

/// A size in a file: `size`, `crop_size`. 0: not given.
struct SizeRule {
  int64_t height = 0, width = 0;
  int64_t shortest_edge = 0, longest_edge = 0;
  int64_t max_height = 0, max_width = 0;

  constexpr bool is_exact() const { return height > 0 && width > 0; }
  constexpr bool operator==(const SizeRule&) const = default;
};

/// The values of Gemma 4's `max_soft_tokens`.
inline constexpr std::array<int64_t, 5> kSoftTokens = {70, 140, 280, 560, 1120};

struct ProcessorRow;

/// An image processor with its settings, named as in the files. A row's defaults, then what the files say.
struct ImageProcessor {
  ProcessorKind kind = ProcessorKind::kClip;
  std::string where;  ///< the file, for errors

  bool do_resize = true, do_rescale = true, do_normalize = true, do_center_crop = false;
  SizeRule size, crop_size;
  Filter resample = Filter::kBicubic;
  double rescale_factor = 1.0 / 255;
  std::array<double, 3> image_mean{}, image_std{};

  /// Pixels of a patch's side. kQwen2Vl, kGemma4: of the tower. kPixtral: of what one token gets, that is the tower's times
  /// spatial_merge_size. kClip, kSiglip, kLlava, kLlavaNext: for the number of tokens; 0: unknown.
  int64_t patch_size = 0;
  int64_t merge_size = 1, temporal_patch_size = 1;           // kQwen2Vl
  int64_t max_soft_tokens = 280, pooling_kernel_size = 3;    // kGemma4
  bool do_image_splitting = true;                            // kIdefics3
  int64_t max_image_size = 364;                              // kIdefics3: pixels of a tile's side
  bool do_pad = false;                                       // kLlava: to a square
  int64_t min_patches = 1, max_patches = 12;                 // kInternVl: tiles
  bool crop_to_patches = true;                               // kInternVl
  std::vector<std::array<int64_t, 2>> image_grid_pinpoints;  // kLlavaNext: height, width
  bool do_pan_and_scan = false;                              // kGemma3; no file sets it
  int64_t pan_and_scan_min_crop_size = 256;                  // kGemma3
  int64_t pan_and_scan_max_num_crops = 4;                    // kGemma3
  double pan_and_scan_min_ratio_to_activate = 1.2;           // kGemma3

  int64_t image_seq_length = 0;  ///< tokens of a tile (kPerTile)
  /// Tokens that the model keeps beside those of patches: 1 for a class token with the strategy "full" (kPatchGrid, kUnpadded).
  int64_t extra_tokens = 0;
  /// The user's limit of the longer side after resizing; 0: none (kQwen2Vl).
  int64_t longest_side = 0;

  const ProcessorRow& row() const;
};

/// Which of the user's limits lower a processor's own.
struct CapUse {
  bool max_pixels = false, longest_edge = false;
};

struct ProcessorRow {
  ProcessorKind kind;
  std::string_view family;  ///< for messages
  NameList types;           ///< `image_processor_type`, without Fast or Pil at the end
  NameList model_types;     ///< of config.json, where no file names a type
  /// Keys that it reads, beside do_resize, resample, do_rescale, rescale_factor, do_normalize, image_mean and image_std.
  NameList keys;
  PixelLayout layout = PixelLayout::kPlanes;
  TokenRule tokens = TokenRule::kPerTile;
  CapUse caps = {};
  /// A size of one number means a square, not the shortest edge.
  bool default_to_square = false;
  bool has_pixel_mask = false;  ///< the tower reads which pixels of a batch are padding
  void (*defaults)(ImageProcessor& processor);
};

inline constexpr std::array<double, 3> kClipMean = {0.48145466, 0.4578275, 0.40821073};
inline constexpr std::array<double, 3> kClipStd = {0.26862954, 0.26130258, 0.27577711};
inline constexpr std::array<double, 3> kHalves = {0.5, 0.5, 0.5};

namespace defaults {

inline void with_clip_colours(ImageProcessor& processor) {
  processor.image_mean = kClipMean;
  processor.image_std = kClipStd;
}

inline void clip(ImageProcessor& processor) {
  with_clip_colours(processor);
  processor.size = {.shortest_edge = 224};
  processor.crop_size = {.height = 224, .width = 224};
  processor.do_center_crop = true;
}

inline void siglip(ImageProcessor& processor) {
  processor.image_mean = processor.image_std = kHalves;
  processor.size = {.height = 224, .width = 224};
}

inline void qwen2_vl(ImageProcessor& processor) {
  with_clip_colours(processor);
  processor.size = {.shortest_edge = 56 * 56, .longest_edge = 28 * 28 * 1280};
  processor.patch_size = 14;
  processor.merge_size = processor.temporal_patch_size = 2;
}

inline void gemma3(ImageProcessor& processor) {
  siglip(processor);
  processor.resample = Filter::kBilinear;
  processor.image_seq_length = 256;
}

inline void gemma4(ImageProcessor& processor) {
  processor.image_std = {1, 1, 1};
  processor.do_normalize = false;
  processor.patch_size = 16;
}

inline void idefics3(ImageProcessor& processor) {
  processor.image_mean = processor.image_std = kHalves;
  processor.resample = Filter::kLanczos;
  processor.size = {.longest_edge = 4 * 364};
  processor.image_seq_length = 169;
}

inline void llava_next(ImageProcessor& processor) {
  clip(processor);
  processor.image_grid_pinpoints = {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
}

inline void pixtral(ImageProcessor& processor) {
  with_clip_colours(processor);
  processor.size = {.longest_edge = 1024};
  processor.patch_size = 16;
}

inline void intern_vl(ImageProcessor& processor) {
  with_clip_colours(processor);
  processor.size = {.height = 384, .width = 384};
  processor.image_seq_length = 256;
}

}  // namespace defaults

inline constexpr auto kProcessors = std::to_array<ProcessorRow>({
    {.kind = ProcessorKind::kQwen2Vl,
     .family = "Qwen2-VL",
     .types = {"Qwen2VLImageProcessor"},
     .model_types = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5",
                     "qwen3_5_moe"},
     .keys = {"size", "min_pixels", "max_pixels", "patch_size", "temporal_patch_size",
              "merge_size"},
     .layout = PixelLayout::kMergeBlocks,
     .tokens = TokenRule::kMergedPatches,
     .caps = {.max_pixels = true, .longest_edge = true},
     .defaults = defaults::qwen2_vl},
    {.kind = ProcessorKind::kGemma3,
     .family = "Gemma 3",
     .types = {"Gemma3ImageProcessor"},
     .model_types = {"gemma3"},
     .keys = {"size"},
     .default_to_square = true,
     .defaults = defaults::gemma3},
    {.kind = ProcessorKind::kGemma4,
     .family = "Gemma 4",
     .types = {"Gemma4ImageProcessor"},
     .model_types = {"gemma4"},
     .keys = {"patch_size", "max_soft_tokens", "pooling_kernel_size"},
     .layout = PixelLayout::kChannelLast,
     .tokens = TokenRule::kMergedPatches,
     .caps = {.max_pixels = true},
     .defaults = defaults::gemma4},
    {.kind = ProcessorKind::kIdefics3,
     .family = "Idefics 3 and SmolVLM",
     .types = {"Idefics3ImageProcessor", "SmolVLMImageProcessor"},
     .model_types = {"idefics3", "smolvlm"},
     .keys = {"size", "max_image_size", "do_image_splitting"},
     .caps = {.longest_edge = true},
     .default_to_square = true,
     .has_pixel_mask = true,
     .defaults = defaults::idefics3},
    {.kind = ProcessorKind::kClip,
     .family = "CLIP",
     .types = {"CLIPImageProcessor"},
     .model_types = {"vipllava"},
     .keys = {"size", "crop_size", "do_center_crop", "do_pad"},
     .tokens = TokenRule::kPatchGrid,
     .defaults = defaults::clip},
    {.kind = ProcessorKind::kSiglip,
     .family = "SigLIP",
     .types = {"SiglipImageProcessor"},
     .model_types = {"paligemma"},
     .keys = {"size", "crop_size", "do_center_crop", "do_pad"},
     .tokens = TokenRule::kPatchGrid,
     .defaults = defaults::siglip},
    {.kind = ProcessorKind::kLlava,
     .family = "LLaVA 1.5",
     .types = {"LlavaImageProcessor"},
     .model_types = {"llava"},
     .keys = {"size", "crop_size", "do_center_crop", "do_pad"},
     .tokens = TokenRule::kPatchGrid,
     .defaults = defaults::clip},
    {.kind = ProcessorKind::kLlavaNext,
     .family = "LLaVA-NeXT",
     .types = {"LlavaNextImageProcessor"},
     .model_types = {"llava_next"},
     .keys = {"size", "crop_size", "do_center_crop", "image_grid_pinpoints"},
     .tokens = TokenRule::kUnpadded,
     .defaults = defaults::llava_next},
    {.kind = ProcessorKind::kPixtral,
     .family = "Pixtral",
     .types = {"PixtralImageProcessor"},
     .model_types = {"mistral3"},
     .keys = {"size", "patch_size", "do_center_crop"},
     .tokens = TokenRule::kPatchGrid,
     .caps = {.longest_edge = true},
     .default_to_square = true,
     .defaults = defaults::pixtral},
    {.kind = ProcessorKind::kInternVl,
     .family = "InternVL",
     .types = {"GotOcr2ImageProcessor"},
     .model_types = {"internvl"},
     .keys = {"size", "min_patches", "max_patches"},
     .caps = {.max_pixels = true},
     .default_to_square = true,
     .defaults = defaults::intern_vl},
});
static_assert(are_in_order(kProcessors, &ProcessorRow::kind));

constexpr const ProcessorRow& processor_row(ProcessorKind kind) {
  return kProcessors[static_cast<size_t>(kind)];
}
inline const ProcessorRow& ImageProcessor::row() const {
  return processor_row(kind);
}

/// The image processor of a model's folder, as transformers chooses and calls it.
///
/// Its settings are those of `image_processor` in processor_config.json, else of preprocessor_config.json; its kind is
/// `image_processor_type`, else `feature_extractor_type`, else of config.json's model_type. What the model's processor passes whatever
/// these files say is followed, too (InternVL's tiles, Gemma 3's crops, Pixtral's patches). Numbers for the text come from
/// processor_config.json, else from config.json, else are the classes' defaults.
/// @throws DataError if there is neither file, or one is damaged, names a processor that has no row, has a key that is not known, or a
///         value that is unfit; with the file and the key
ImageProcessor read_processor(const std::filesystem::path& folder);

/// Limits that a user sets for all images. 0: none.
struct ImageCaps {
  int64_t max_pixels = 0;  ///< of an image after resizing, or of its tiles without the whole image
  int64_t longest_edge = 0;  ///< pixels of the longer side after resizing
  bool any() const { return max_pixels > 0 || longest_edge > 0; }
  bool operator==(const ImageCaps&) const = default;
};
/// The limits in messages. What sets them is named where it is known.
inline constexpr std::string_view kMaxPixelsCap = "the limit of pixels";
inline constexpr std::string_view kLongestEdgeCap = "the limit of the longer side";

/// A processor whose own limits are lowered; greater ones stay.
/// @throws ConfigError if the processor has no such limit, or cannot have one so low
ImageProcessor with_caps(ImageProcessor processor, const ImageCaps& caps);

}  // namespace sftrun::images
