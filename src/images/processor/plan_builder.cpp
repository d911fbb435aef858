#include "plan_builder.h"

#include <algorithm>
#include <cmath>

#include "sftrun/core/error.h"

namespace sftrun::images {

namespace {

/// A very narrow image may become very large: with the shortest edge 336, 1 x 65535 pixels 336 x 22 million.
constexpr int64_t kMaxPlannedPixels = int64_t{1} << 28;
constexpr size_t kMaxPlannedTiles = 1 << 16;

}  // namespace

void PlanBuilder::refuse(const std::string& why) const {
  throw DataError(
      fmt::format("an image of {} x {} pixels {}", source().width, source().height, why),
      processor_.where, "remove the image, or change its size");
}

size_t PlanBuilder::add(ImageStep step) {
  if (step.width < 1 || step.height < 1)
    refuse(fmt::format("would become {} x {} pixels", step.width, step.height));
  if (step.width > kMaxPlannedPixels / step.height)
    refuse(fmt::format("would become {} x {} pixels, which is too large", step.width, step.height));
  plan_.steps.push_back(step);
  extents_.push_back({step.width, step.height});
  return extents_.size() - 1;
}

size_t PlanBuilder::resize(size_t of, Extent to) {
  if (to == extent(of)) return of;
  return add({.kind = ImageStep::Kind::kResize, .of = of, .width = to.width, .height = to.height});
}

size_t PlanBuilder::crop(size_t of, int64_t left, int64_t top, Extent size) {
  return add({.kind = ImageStep::Kind::kCrop,
              .of = of,
              .width = std::min(size.width, extent(of).width - left),
              .height = std::min(size.height, extent(of).height - top),
              .left = left,
              .top = top});
}

size_t PlanBuilder::pad(size_t of, int64_t left, int64_t top, Extent to, Colour colour) {
  if (to == extent(of)) return of;
  return add({.kind = ImageStep::Kind::kPad,
              .of = of,
              .width = to.width,
              .height = to.height,
              .left = left,
              .top = top,
              .colour = colour});
}

void PlanBuilder::add_tile(size_t of, int64_t left, int64_t top, Extent size) {
  if (plan_.tiles.empty()) {
    plan_.tile_width = size.width;
    plan_.tile_height = size.height;
  } else if (size != Extent{plan_.tile_width, plan_.tile_height}) {
    refuse(fmt::format("has tiles of {} x {} and of {} x {} pixels, which must be equal",
                       plan_.tile_width, plan_.tile_height, size.width, size.height));
  }
  if (plan_.tiles.size() == kMaxPlannedTiles)
    refuse(fmt::format("would have more than {} tiles", kMaxPlannedTiles));
  plan_.tiles.push_back({of, left, top});
}

void PlanBuilder::add_grid(size_t of, Extent tile) {
  const Extent whole = extent(of);
  plan_.tile_rows = whole.height / tile.height;
  plan_.tile_columns = whole.width / tile.width;
  for (int64_t y = 0; y < plan_.tile_rows; ++y)
    for (int64_t x = 0; x < plan_.tile_columns; ++x)
      add_tile(of, x * tile.width, y * tile.height, tile);
}

void PlanBuilder::add_middle(size_t of, Extent size) {
  add_tile(of, centred(extent(of).width, size.width, odd_padding()),
           centred(extent(of).height, size.height, odd_padding()), size);
}

namespace {

/// transformers' get_size_with_aspect_ratio.
Extent between_edges(int64_t shortest, int64_t longest, Extent before) {
  const auto width = static_cast<double>(before.width), height = static_cast<double>(before.height);
  const double least = std::min(width, height), most = std::max(width, height);
  double exact = static_cast<double>(shortest);
  if (most / least * exact > static_cast<double>(longest)) {
    exact = static_cast<double>(longest) * least / most;
    shortest = static_cast<int64_t>(std::nearbyint(exact));  // half to even, as Python's round
  }
  if (std::min(before.width, before.height) == shortest) return before;
  if (before.width < before.height) return {shortest, static_cast<int64_t>(exact * height / width)};
  return {static_cast<int64_t>(exact * width / height), shortest};
}

Extent with_shortest_edge(int64_t shortest, Extent before) {
  const auto [least, most] = std::minmax(before.width, before.height);
  const auto longest =
      static_cast<int64_t>(static_cast<double>(shortest * most) / static_cast<double>(least));
  return before.width <= before.height ? Extent{shortest, longest} : Extent{longest, shortest};
}

Extent within(int64_t max_width, int64_t max_height, Extent before) {
  const auto width = static_cast<double>(before.width), height = static_cast<double>(before.height);
  const double scale =
      std::min(static_cast<double>(max_height) / height, static_cast<double>(max_width) / width);
  return {static_cast<int64_t>(width * scale), static_cast<int64_t>(height * scale)};
}

}  // namespace

Extent resized(const PlanBuilder& builder, const SizeRule& size, Extent before) {
  if (size.shortest_edge > 0 && size.longest_edge > 0)
    return between_edges(size.shortest_edge, size.longest_edge, before);
  if (size.shortest_edge > 0) return with_shortest_edge(size.shortest_edge, before);
  if (size.max_height > 0 && size.max_width > 0)
    return within(size.max_width, size.max_height, before);
  if (size.is_exact()) return {size.width, size.height};
  throw DataError("`size` does not say how to resize images", builder.processor().where,
                  "give height and width, shortest_edge, or max_height and max_width");
}

}  // namespace sftrun::images
