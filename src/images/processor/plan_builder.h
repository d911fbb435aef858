#pragma once

#include "sftrun/images/process.h"

namespace sftrun::images {

struct Extent {
  int64_t width = 0, height = 0;
  bool operator==(const Extent&) const = default;
};

/// Writes the steps and tiles of a plan, and knows the size of every image.
class PlanBuilder {
 public:
  PlanBuilder(const ImageProcessor& processor, Extent source, Backend backend)
      : processor_(processor), backend_(backend), extents_{source} {}

  const ImageProcessor& processor() const { return processor_; }
  Extent source() const { return extents_.front(); }
  Extent extent(size_t image) const { return extents_[image]; }
  OddPadding odd_padding() const {
    return backend_ == Backend::kPil ? OddPadding::kBefore : OddPadding::kAfter;
  }
  ImagePlan& plan() { return plan_; }
  const ImagePlan& plan() const { return plan_; }

  /// @return the image's number; `of` where its size stays
  size_t resize(size_t of, Extent to);
  /// @param size clipped to what `of` has right and below of the corner
  size_t crop(size_t of, int64_t left, int64_t top, Extent size);
  size_t pad(size_t of, int64_t left, int64_t top, Extent to, Colour colour = {});
  /// The next tile.   @throws DataError if its size is not that of the others
  void add_tile(size_t of, int64_t left, int64_t top, Extent size);
  void add_tile(size_t of) { add_tile(of, 0, 0, extent(of)); }
  /// The tiles of a grid in rows from the top.
  void add_grid(size_t of, Extent tile);
  void add_middle(size_t of, Extent size);

  /// The image cannot be processed.   @param why continues "an image of 1 x 900 pixels "
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  size_t add(ImageStep step);

  const ImageProcessor& processor_;
  Backend backend_;
  ImagePlan plan_;
  std::vector<Extent> extents_;
};

/// The size after transformers' general `resize`, by the keys that `size` has.
Extent resized(const PlanBuilder& builder, const SizeRule& size, Extent before);

/// Counts rows and tokens of a plan that has its tiles.
ImagePlan finished_plan(PlanBuilder& builder);

/// What the rows of kProcessors do.
void plan_qwen2_vl(PlanBuilder& builder);
void plan_gemma3(PlanBuilder& builder);
void plan_gemma4(PlanBuilder& builder);
void plan_idefics3(PlanBuilder& builder);
void plan_single(PlanBuilder& builder);
void plan_llava(PlanBuilder& builder);
void plan_llava_next(PlanBuilder& builder);
void plan_pixtral(PlanBuilder& builder);
void plan_intern_vl(PlanBuilder& builder);

/// What the rows of kVideoProcessors do with a frame, where it is not what kProcessors does with an image.
/// @param max_pixels of all frames
void plan_qwen3_vl_frame(PlanBuilder& builder, int64_t num_frames, int64_t max_pixels);
void plan_smol_vlm_frame(PlanBuilder& builder);

/// LLaVA-NeXT: sets the rows and columns of the tiles' patches without padding.
void unpad(PlanBuilder& builder);

}  // namespace sftrun::images
