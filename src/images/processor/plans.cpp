// The sizes and tiles of each kind of processor, after transformers' models/*/image_processing_pil_*.py.
#include <algorithm>
#include <cmath>
#include <limits>

#include "plan_builder.h"
#include "sftrun/core/error.h"

namespace sftrun::images {

namespace {

double real(int64_t number) {
  return static_cast<double>(number);
}
int64_t whole(double number) {
  return static_cast<int64_t>(number);
}
int64_t floor_of(double number) {
  return static_cast<int64_t>(std::floor(number));
}
int64_t ceil_of(double number) {
  return static_cast<int64_t>(std::ceil(number));
}
int64_t multiple_above(int64_t number, int64_t step) {
  return (number + step - 1) / step * step;
}

/// The user's limit of the longer side, which the reference does not have.
Extent within_side(Extent before, Extent after, int64_t factor, int64_t side) {
  if (side == 0 || std::max(after.width, after.height) <= side) return after;
  const double scale = real(side) / real(std::max(before.width, before.height));
  const auto lowered = [&](int64_t length) {
    return std::max(factor, floor_of(real(length) * scale / real(factor)) * factor);
  };
  return {lowered(before.width), lowered(before.height)};
}

/// Qwen's smart_resize: multiples of `factor` with a number of pixels between two limits.
Extent smart_size(const PlanBuilder& builder, Extent before) {
  const ImageProcessor& processor = builder.processor();
  const int64_t factor = processor.patch_size * processor.merge_size;
  const int64_t least = processor.size.shortest_edge, most = processor.size.longest_edge;
  const double width = real(before.width), height = real(before.height), step = real(factor);
  if (std::max(width, height) / std::min(width, height) > 200)
    builder.refuse("is refused: one side is more than 200 times the other");
  const auto rounded = [&](double side) { return whole(std::nearbyint(side / step)) * factor; };
  Extent after{rounded(width), rounded(height)};
  if (after.width * after.height > most) {
    const double beta = std::sqrt(height * width / real(most));
    const auto lowered = [&](double side) {
      return std::max(factor, floor_of(side / beta / step) * factor);
    };
    after = {lowered(width), lowered(height)};
  } else if (after.width * after.height < least) {
    const double beta = std::sqrt(real(least) / (height * width));
    const auto raised = [&](double side) { return ceil_of(side * beta / step) * factor; };
    after = {raised(width), raised(height)};
  }
  return within_side(before, after, factor, processor.longest_side);
}

void require_multiples(const PlanBuilder& builder, Extent size, int64_t step) {
  if (size.width % step != 0 || size.height % step != 0)
    builder.refuse(
        fmt::format("is refused without `do_resize`: its sides must be multiples of {}", step));
}

void set_patch_grid(ImagePlan& plan, int64_t patch) {
  plan.grid_thw = {1, plan.tile_height / patch, plan.tile_width / patch};
}

/// Gemma 4's get_aspect_ratio_preserving_size: as many patches as the text's tokens allow.
Extent filling_size(const PlanBuilder& builder, Extent before) {
  const ImageProcessor& processor = builder.processor();
  const int64_t pooled = processor.pooling_kernel_size * processor.pooling_kernel_size;
  const int64_t pixels =
      processor.max_soft_tokens * pooled * processor.patch_size * processor.patch_size;
  const int64_t step = processor.pooling_kernel_size * processor.patch_size;
  const double factor = std::sqrt(real(pixels) / real(before.width * before.height));
  const auto lowered = [&](int64_t side) {
    return floor_of(factor * real(side) / real(step)) * step;
  };
  Extent after{lowered(before.width), lowered(before.height)};
  // A side of 0 becomes the least one, and the other as many of them as the sides' ratio.
  const auto many = [&](int64_t longer, int64_t shorter) {
    return std::min(floor_of(real(longer) / real(shorter)) * step,
                    processor.max_soft_tokens * step);
  };
  if (after.width == 0 && after.height == 0)
    builder.refuse(fmt::format("would become 0 x 0 pixels: its sides are multiples of {}", step));
  if (after.height == 0) {
    after = {many(before.width, before.height), step};
  } else if (after.width == 0) {
    after = {step, many(before.height, before.width)};
  }
  if (after.width * after.height > pixels)
    builder.refuse(fmt::format("would become {} x {} pixels, which are more than {} tokens",
                               after.width, after.height, processor.max_soft_tokens));
  return after;
}

/// One tile of whole patches.   @param multiple pixels that divide its sides
void add_patches(PlanBuilder& builder, Extent size, int64_t multiple) {
  require_multiples(builder, size, multiple);
  builder.add_tile(builder.resize(0, size));
  set_patch_grid(builder.plan(), builder.processor().patch_size);
}

}  // namespace

void plan_qwen2_vl(PlanBuilder& builder) {
  const ImageProcessor& processor = builder.processor();
  const Extent size =
      processor.do_resize ? smart_size(builder, builder.source()) : builder.source();
  add_patches(builder, size, processor.patch_size * processor.merge_size);
}

namespace {

/// smart_resize of Qwen3-VL's video processor: the limits are of all frames together.
Extent smart_frame_size(const PlanBuilder& builder, int64_t num_frames, int64_t max_pixels) {
  const ImageProcessor& processor = builder.processor();
  const int64_t factor = processor.patch_size * processor.merge_size;
  const Extent before = builder.source();
  int64_t wide = before.width, high = before.height;
  if (wide < factor || high < factor) {
    const double scale = std::max(real(factor) / real(high), real(factor) / real(wide));
    high = whole(real(high) * scale);
    wide = whole(real(wide) * scale);
  }
  const double width = real(wide), height = real(high), step = real(factor);
  if (std::max(width, height) / std::min(width, height) > 200)
    builder.refuse("is refused: one side is more than 200 times the other");
  const auto rounded = [](double number, double to) { return whole(std::nearbyint(number / to)); };
  Extent after{rounded(width, step) * factor, rounded(height, step) * factor};
  const int64_t frames = rounded(real(num_frames), real(processor.temporal_patch_size)) *
                         processor.temporal_patch_size;
  const int64_t pixels = frames * after.width * after.height,
                min_pixels = std::min(processor.size.shortest_edge, max_pixels);
  if (pixels > max_pixels) {
    const double beta = std::sqrt(real(num_frames) * height * width / real(max_pixels));
    const auto lowered = [&](double side) {
      return std::max(factor, floor_of(side / beta / step) * factor);
    };
    after = {lowered(width), lowered(height)};
  } else if (pixels < min_pixels) {
    const double beta = std::sqrt(real(min_pixels) / (real(num_frames) * height * width));
    const auto raised = [&](double side) { return ceil_of(side * beta / step) * factor; };
    after = {raised(width), raised(height)};
  }
  return within_side(before, after, factor, processor.longest_side);
}

}  // namespace

void plan_qwen3_vl_frame(PlanBuilder& builder, int64_t num_frames, int64_t max_pixels) {
  const ImageProcessor& processor = builder.processor();
  const Extent size =
      processor.do_resize ? smart_frame_size(builder, num_frames, max_pixels) : builder.source();
  add_patches(builder, size, processor.patch_size * processor.merge_size);
}

void plan_gemma4(PlanBuilder& builder) {
  const ImageProcessor& processor = builder.processor();
  const Extent size =
      processor.do_resize ? filling_size(builder, builder.source()) : builder.source();
  add_patches(builder, size, processor.pooling_kernel_size * processor.patch_size);
}

namespace {

void plan_middle_of(PlanBuilder& builder, size_t image) {
  const ImageProcessor& processor = builder.processor();
  if (processor.do_resize)
    image = builder.resize(image, resized(builder, processor.size, builder.extent(image)));
  if (processor.do_center_crop) {
    builder.add_middle(image, {processor.crop_size.width, processor.crop_size.height});
  } else {
    builder.add_tile(image);
  }
}

/// Gemma 3's pan and scan: how many crops along the longer side; 0: none.
int64_t num_crops_of(const ImageProcessor& processor, Extent source) {
  const auto [shorter, longer] = std::minmax(source.width, source.height);
  const double ratio = real(longer) / real(shorter);
  if (ratio < processor.pan_and_scan_min_ratio_to_activate) return 0;
  int64_t crops = std::min(floor_of(real(longer) / real(processor.pan_and_scan_min_crop_size)),
                           floor_of(ratio + 0.5));
  crops = std::min(processor.pan_and_scan_max_num_crops, std::max<int64_t>(2, crops));
  const int64_t length = ceil_of(real(longer) / real(crops));
  return std::min(length, shorter) < processor.pan_and_scan_min_crop_size ? 0 : crops;
}

}  // namespace

void plan_single(PlanBuilder& builder) {
  plan_middle_of(builder, 0);
}

void plan_gemma3(PlanBuilder& builder) {
  plan_middle_of(builder, 0);
  const Extent source = builder.source();
  const int64_t crops =
      builder.processor().do_pan_and_scan ? num_crops_of(builder.processor(), source) : 0;
  if (crops == 0) return;
  const bool is_wide = source.width >= source.height;
  builder.plan().tile_rows = is_wide ? 1 : crops;
  builder.plan().tile_columns = is_wide ? crops : 1;
  const int64_t length = ceil_of(real(is_wide ? source.width : source.height) / real(crops));
  for (int64_t i = 0; i < crops; ++i) {
    const size_t crop = is_wide ? builder.crop(0, i * length, 0, {length, source.height})
                                : builder.crop(0, 0, i * length, {source.width, length});
    plan_middle_of(builder, crop);
  }
}

void plan_llava(PlanBuilder& builder) {
  const ImageProcessor& processor = builder.processor();
  const Extent source = builder.source();
  size_t image = 0;
  if (processor.do_pad) {
    const int64_t side = std::max(source.width, source.height);
    const auto level = [&](int channel) {
      return static_cast<uint8_t>(processor.image_mean[static_cast<size_t>(channel)] * 255);
    };
    image = builder.pad(0, (side - source.width) / 2, (side - source.height) / 2, {side, side},
                        {level(0), level(1), level(2)});
  }
  plan_middle_of(builder, image);
}

namespace {

constexpr int64_t kIdefics3MaxSide = 4096;

/// Idefics 3: the longer side becomes `side`, the other one even.
Extent with_longest_edge(int64_t side, Extent before) {
  const auto even = [](int64_t length) { return std::max<int64_t>(length + length % 2, 1); };
  const double ratio = real(before.width) / real(before.height);
  Extent after = before.width >= before.height ? Extent{side, even(whole(real(side) / ratio))}
                                               : Extent{even(whole(real(side) * ratio)), side};
  const double new_ratio = real(after.width) / real(after.height);
  if (after.width >= after.height && after.width > kIdefics3MaxSide) {
    after = {kIdefics3MaxSide, whole(real(kIdefics3MaxSide) / new_ratio)};
  } else if (after.height > after.width && after.height > kIdefics3MaxSide) {
    after = {whole(real(kIdefics3MaxSide) * new_ratio), kIdefics3MaxSide};
  }
  return {std::max<int64_t>(after.width, 1), std::max<int64_t>(after.height, 1)};
}

/// Idefics 3's resize_for_vision_encoder: whole tiles.
Extent in_tiles(int64_t tile, Extent before) {
  const double ratio = real(before.width) / real(before.height);
  if (before.width >= before.height) {
    const int64_t width = multiple_above(before.width, tile);
    return {width, multiple_above(whole(real(width) / ratio), tile)};
  }
  const int64_t height = multiple_above(before.height, tile);
  return {multiple_above(whole(real(height) * ratio), tile), height};
}

}  // namespace

void plan_idefics3(PlanBuilder& builder) {
  const ImageProcessor& processor = builder.processor();
  const SizeRule& size = processor.size;
  const int64_t side = processor.max_image_size;
  size_t image = 0;
  if (processor.do_resize) {
    if (size.longest_edge == 0 && !size.is_exact())
      throw DataError("`size` does not say how to resize images", processor.where,
                      "give longest_edge, or height and width");
    image = builder.resize(0, size.longest_edge > 0
                                  ? with_longest_edge(size.longest_edge, builder.source())
                                  : Extent{size.width, size.height});
  }
  const Extent tile{side, side};
  if (!processor.do_image_splitting) return builder.add_tile(builder.resize(image, tile));
  image = builder.resize(image, in_tiles(side, builder.extent(image)));
  if (builder.extent(image) == tile) return builder.add_tile(image);
  builder.add_grid(image, tile);
  builder.add_tile(builder.resize(image, tile));
}

void plan_smol_vlm_frame(PlanBuilder& builder) {
  const ImageProcessor& processor = builder.processor();
  const SizeRule& size = processor.size;
  if (!processor.do_resize) return builder.add_tile(0);
  const size_t image = builder.resize(
      0, size.longest_edge > 0
             ? with_longest_edge(std::min(size.longest_edge, kIdefics3MaxSide), builder.source())
             : Extent{size.width, size.height});
  builder.add_tile(builder.resize(image, {processor.max_image_size, processor.max_image_size}));
}

void plan_pixtral(PlanBuilder& builder) {
  const ImageProcessor& processor = builder.processor();
  const SizeRule& size = processor.size;
  Extent after = builder.source();
  if (processor.do_resize) {
    if (size.longest_edge == 0 && !size.is_exact())
      throw DataError("`size` does not say how to resize images", processor.where,
                      "give longest_edge, or height and width");
    const int64_t most_high = size.longest_edge > 0 ? size.longest_edge : size.height;
    const int64_t most_wide = size.longest_edge > 0 ? size.longest_edge : size.width;
    const double ratio =
        std::max(real(after.height) / real(most_high), real(after.width) / real(most_wide));
    if (ratio > 1)
      after = {floor_of(real(after.width) / ratio), floor_of(real(after.height) / ratio)};
    after = {multiple_above(after.width, processor.patch_size),
             multiple_above(after.height, processor.patch_size)};
  }
  builder.add_tile(builder.resize(0, after));
}

namespace {

struct TileGrid {
  int64_t columns = 1, rows = 1;
};

/// GotOcr2's get_optimal_tiled_canvas: the grid whose ratio is nearest; of equal ones, the larger if the image has half its pixels.
TileGrid best_grid(const ImageProcessor& processor, Extent source) {
  std::vector<TileGrid> grids;
  for (int64_t columns = 1; columns <= processor.max_patches; ++columns)
    for (int64_t rows = 1; rows * columns <= processor.max_patches; ++rows)
      if (rows * columns >= processor.min_patches) grids.push_back({columns, rows});
  std::stable_sort(grids.begin(), grids.end(), [](const TileGrid& a, const TileGrid& b) {
    return a.columns * a.rows < b.columns * b.rows;
  });
  const double ratio = real(source.width) / real(source.height);
  double best_difference = std::numeric_limits<double>::infinity();
  TileGrid best;
  for (const TileGrid& grid : grids) {
    const double difference = std::abs(ratio - real(grid.columns) / real(grid.rows));
    const double half = 0.5 * real(processor.size.height) * real(processor.size.width) *
                        real(grid.columns) * real(grid.rows);
    if (difference < best_difference ||
        (difference == best_difference && real(source.width * source.height) > half))
      best = grid;
    best_difference = std::min(difference, best_difference);
  }
  return best;
}

}  // namespace

void plan_intern_vl(PlanBuilder& builder) {
  const ImageProcessor& processor = builder.processor();
  if (!processor.crop_to_patches || processor.max_patches < 2) return plan_single(builder);
  const Extent tile{processor.size.width, processor.size.height};
  const TileGrid grid = best_grid(processor, builder.source());
  const size_t canvas = builder.resize(0, {tile.width * grid.columns, tile.height * grid.rows});
  if (grid.columns * grid.rows == 1) return builder.add_tile(canvas);
  builder.add_grid(canvas, tile);
  builder.add_tile(builder.resize(0, tile));
}

namespace {

/// transformers' select_best_resolution.
Extent best_resolution(const ImageProcessor& processor, Extent source) {
  Extent best;
  int64_t most_used = 0, least_wasted = std::numeric_limits<int64_t>::max();
  for (const auto& [height, width] : processor.image_grid_pinpoints) {
    const double scale =
        std::min(real(width) / real(source.width), real(height) / real(source.height));
    const int64_t used =
        std::min(whole(real(source.width) * scale) * whole(real(source.height) * scale),
                 source.width * source.height);
    const int64_t wasted = width * height - used;
    if (used > most_used || (used == most_used && wasted < least_wasted)) {
      most_used = used;
      least_wasted = wasted;
      best = {width, height};
    }
  }
  return best;
}

/// transformers' get_patch_output_size: as large as fits.
Extent fitted(Extent source, Extent into) {
  const double wide = real(into.width) / real(source.width),
               high = real(into.height) / real(source.height);
  if (wide < high) return {into.width, std::min(ceil_of(real(source.height) * wide), into.height)};
  return {std::min(ceil_of(real(source.width) * high), into.width), into.height};
}

/// Each tile is resized and cropped once more, which mostly changes nothing.
void add_anyres_tile(PlanBuilder& builder, size_t of, int64_t left, int64_t top, Extent size) {
  const ImageProcessor& processor = builder.processor();
  const Extent there{std::min(size.width, builder.extent(of).width - left),
                     std::min(size.height, builder.extent(of).height - top)};
  const Extent crop{processor.crop_size.width, processor.crop_size.height};
  const bool is_resized = processor.do_resize && resized(builder, processor.size, there) != there;
  const bool is_cropped = processor.do_center_crop && crop != there;
  if (!is_resized && !is_cropped) return builder.add_tile(of, left, top, there);
  const size_t image = there == builder.extent(of) ? of : builder.crop(of, left, top, there);
  plan_middle_of(builder, image);
}

}  // namespace

void plan_llava_next(PlanBuilder& builder) {
  const ImageProcessor& processor = builder.processor();
  const SizeRule& size = processor.size;
  const Extent overview = size.is_exact() ? Extent{size.width, size.height}
                                          : Extent{size.shortest_edge, size.shortest_edge};
  const int64_t side = processor.crop_size.height > 0 ? processor.crop_size.height
                       : size.height > 0              ? size.height
                                                      : size.shortest_edge;
  const size_t small = builder.resize(0, overview);
  add_anyres_tile(builder, small, 0, 0, builder.extent(small));
  const Extent canvas = best_resolution(processor, builder.source());
  const Extent inside = fitted(builder.source(), canvas);
  const size_t image = builder.resize(0, inside);
  const size_t on_canvas = builder.pad(image, (canvas.width - inside.width) / 2,
                                       (canvas.height - inside.height) / 2, canvas);
  ImagePlan& plan = builder.plan();
  for (int64_t top = 0; top < canvas.height; top += side, ++plan.tile_rows)
    for (int64_t left = 0; left < canvas.width; left += side)
      add_anyres_tile(builder, on_canvas, left, top, {side, side});
  plan.tile_columns = (static_cast<int64_t>(plan.tiles.size()) - 1) / plan.tile_rows;
}

namespace {

/// Python's round(number, 7), then int().
int64_t whole_after_rounding(double number) {
  return whole(std::stod(fmt::format("{:.7f}", number)));
}

}  // namespace

void unpad(PlanBuilder& builder) {
  const ImageProcessor& processor = builder.processor();
  const Extent source = builder.source();
  const Extent canvas = best_resolution(processor, source);
  ImagePlan& plan = builder.plan();
  int64_t high = plan.tile_height / processor.patch_size * (canvas.height / plan.tile_height);
  int64_t wide = plan.tile_width / processor.patch_size * (canvas.width / plan.tile_width);
  const double width = real(source.width), height = real(source.height);
  if (width / height > real(wide) / real(high)) {
    high -= (high - whole_after_rounding(height * (real(wide) / width))) / 2 * 2;
  } else {
    wide -= (wide - whole_after_rounding(width * (real(high) / height))) / 2 * 2;
  }
  plan.unpadded_rows = high, plan.unpadded_columns = wide;
}

}  // namespace sftrun::images
