#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sftrun/core/error.h"
#include "sftrun/layers/tower.h"
#include "tower/tower_ops.h"

namespace sftrun::layers {
namespace {

/// A patch's row and column in its tile.
struct PatchPlace {
  int64_t row = 0, column = 0;
};

/// Places of a tile's patches in the order of `TowerInput`.
std::vector<PatchPlace> places_of(const TowerTile& tile, int64_t side) {
  std::vector<PatchPlace> places;
  places.reserve(static_cast<size_t>(tile.patches()));
  for (int64_t top = 0; top < tile.rows; top += side)
    for (int64_t left = 0; left < tile.columns; left += side)
      for (int64_t i = 0; i < side * side; ++i) places.push_back({top + i / side, left + i % side});
  return places;
}

/// The order of squares by windows: in each tile windows of the same shape follow one another, so that few sizes of windows do.
struct Windows {
  std::vector<int64_t> order;          // of squares, over all tiles
  std::vector<TowerLayout::Run> runs;  // in rows
};

/// @param tile in squares   @param side squares of a window's side
void add_windows(const TowerTile& tile, int64_t side, int64_t first_square,
                 int64_t patches_per_square, Windows& windows) {
  const int64_t across = tile.columns / side, down = tile.rows / side;  // whole windows
  const std::array<int64_t, 2> row_ends = {down * side, tile.rows},
                               column_ends = {across * side, tile.columns};
  for (size_t part = 0; part < 4;
       ++part) {  // whole windows, those cut at the right, below, and both
    const int64_t top = part < 2 ? 0 : row_ends[0], bottom = row_ends[part < 2 ? 0 : 1];
    const int64_t left = part % 2 == 0 ? 0 : column_ends[0], right = column_ends[part % 2];
    const int64_t height = part < 2 ? side : tile.rows - row_ends[0],
                  width = part % 2 == 0 ? side : tile.columns - column_ends[0];
    if (top >= bottom || left >= right) continue;
    TowerLayout::Run run;
    run.first_row = static_cast<int64_t>(windows.order.size()) * patches_per_square;
    run.length = height * width * patches_per_square;
    for (int64_t y = top; y < bottom; y += height) {
      for (int64_t x = left; x < right; x += width) {
        ++run.tiles;
        for (int64_t row = y; row < y + height; ++row)
          for (int64_t column = x; column < x + width; ++column)
            windows.order.push_back(first_square + row * tile.columns + column);
      }
    }
    windows.runs.push_back(run);
  }
}

Windows windows_of(const spec::VisionSpec& spec, const std::vector<TowerTile>& tiles) {
  const int64_t side = spec.merger.side;
  Windows windows;
  int64_t first = 0;
  for (const TowerTile& tile : tiles) {
    const TowerTile squares{.rows = tile.rows / side, .columns = tile.columns / side};
    add_windows(squares, spec.window_side, first, side * side, windows);
    first += squares.patches();
  }
  return windows;
}

std::vector<TowerLayout::Run> runs_of(const std::vector<TowerTile>& tiles, int64_t class_tokens) {
  std::vector<TowerLayout::Run> runs;
  int64_t row = 0;
  for (const TowerTile& tile : tiles) {
    const int64_t length = class_tokens + tile.patches();
    if (runs.empty() || runs.back().length != length) runs.push_back({row, 0, length});
    ++runs.back().tiles;
    row += length;
  }
  return runs;
}

/// Tiles or windows as documents whose rows see each other.
kernels::BatchMetadata documents_of(const std::vector<TowerLayout::Run>& runs) {
  kernels::BatchMetadata seen;
  seen.cu_seqlens = {0};
  for (const TowerLayout::Run& run : runs) {
    const auto length = static_cast<int32_t>(run.length);
    seen.max_seqlen = std::max(seen.max_seqlen, length);
    for (int64_t i = 0; i < run.tiles; ++i) {
      const int32_t begin = seen.cu_seqlens.back();
      seen.both_ways.push_back({begin, begin + length});
      seen.cu_seqlens.push_back(begin + length);
    }
  }
  return seen;
}

[[noreturn]] void refuse_tile(const spec::VisionSpec& spec, const TowerTile& tile) {
  throw DataError(fmt::format("an image of {} x {} patches does not fit the position embeddings of "
                              "the vision tower, which has {} of them",
                              tile.rows, tile.columns, spec.position_rows),
                  {}, "use the image processor's files that belong to the model");
}

/// kTable: a row per hidden state, the class token's first.
std::vector<int64_t> table_rows(const spec::VisionSpec& spec, const std::vector<TowerTile>& tiles,
                                int64_t class_tokens) {
  std::vector<int64_t> rows;
  for (const TowerTile& tile : tiles) {
    if (tile.rows != tile.columns || class_tokens + tile.patches() != spec.position_rows)
      refuse_tile(spec, tile);
    for (int64_t i = 0; i < class_tokens; ++i) rows.push_back(i);
    for (const PatchPlace& place : places_of(tile, spec.merger.side))
      rows.push_back(class_tokens + place.row * tile.columns + place.column);
  }
  return rows;
}

/// kAxes: for each patch the row of the table of columns, and that of rows in the table that follows it.
std::vector<int64_t> axes_rows(const spec::VisionSpec& spec, const std::vector<TowerTile>& tiles) {
  std::vector<int64_t> rows;
  for (const TowerTile& tile : tiles) {
    if (std::max(tile.rows, tile.columns) > spec.position_rows) refuse_tile(spec, tile);
    for (const PatchPlace& place : places_of(tile, spec.merger.side)) {
      rows.push_back(place.column);
      rows.push_back(spec.position_rows + place.row);
    }
  }
  return rows;
}

/// The two entries of a table of `side` that an index of `size` lies between, and their weights; in fp32, in the order of operations
/// of transformers' get_vision_interpolation_indices_and_weights.
struct Taps {
  std::array<int64_t, 2> entries;
  std::array<float, 2> weights;
};
Taps taps_of(int64_t index, int64_t size, int64_t side) {
  const float place = static_cast<float>(index) * static_cast<float>(side - 1) /
                      static_cast<float>(std::max<int64_t>(size - 1, 1));
  const auto below = static_cast<int64_t>(std::floor(place));
  const float rest = place - static_cast<float>(below);
  return {{std::min(below, side - 1), std::min(below + 1, side - 1)}, {1 - rest, rest}};
}

void add_interpolated(const spec::VisionSpec& spec, const std::vector<TowerTile>& tiles,
                      std::vector<int64_t>& rows, std::vector<float>& weights) {
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(spec.position_rows)));
  for (const TowerTile& tile : tiles) {
    for (const PatchPlace& place : places_of(tile, spec.merger.side)) {
      const Taps down = taps_of(place.row, tile.rows, side),
                 across = taps_of(place.column, tile.columns, side);
      for (size_t i = 0; i < 2; ++i) {
        for (size_t j = 0; j < 2; ++j) {
          rows.push_back(down.entries[i] * side + across.entries[j]);
          weights.push_back(down.weights[i] * across.weights[j]);
        }
      }
    }
  }
}

/// Frequencies of one axis, in fp32 as transformers computes them.
std::vector<float> frequencies(const spec::VisionSpec& spec, int64_t first, int64_t stride,
                               int64_t count, int64_t dim) {
  std::vector<float> all;
  for (int64_t j = 0; j < count; ++j) {
    const float exponent = static_cast<float>(2 * (first + j * stride)) / static_cast<float>(dim);
    all.push_back(1.0F /
                  static_cast<float>(std::pow(static_cast<float>(spec.rope_theta), exponent)));
  }
  return all;
}

/// What each channel of a head rotates by: the index of the axis (0: row, 1: column) and the frequency.
std::vector<std::pair<int, float>> channels_of(const spec::VisionSpec& spec) {
  const int64_t dim = spec.head_dim, quarter = dim / 4;
  std::vector<std::pair<int, float>> channels;
  const auto add = [&](int axis, const std::vector<float>& of) {
    for (const float frequency : of) channels.emplace_back(axis, frequency);
  };
  switch (spec.rope) {
    case spec::TowerRope::kNone:
      break;
    case spec::TowerRope::kHalves:
      for (int half = 0; half < 2; ++half)
        for (const int axis : {0, 1}) add(axis, frequencies(spec, 0, 1, quarter, dim / 2));
      break;
    case spec::TowerRope::kAlternating:
      for (int half = 0; half < 2; ++half)
        for (const int axis : {0, 1}) add(axis, frequencies(spec, axis, 2, quarter, dim));
      break;
    case spec::TowerRope::kAxes:
      for (const int axis : {1, 0})
        for (int half = 0; half < 2; ++half) add(axis, frequencies(spec, 0, 1, quarter, dim / 2));
      break;
  }
  return channels;
}

void set_rope(const spec::VisionSpec& spec, const std::vector<TowerTile>& tiles,
              TowerLayout& layout) {
  const std::vector<std::pair<int, float>> channels = channels_of(spec);
  if (channels.empty()) return;
  std::vector<int64_t> places;
  for (const TowerTile& tile : tiles)
    for (const PatchPlace& place : places_of(tile, spec.merger.side))
      places.insert(places.end(), {place.row, place.column});
  std::vector<int64_t> axes;
  std::vector<float> factors;
  for (const auto& [axis, frequency] : channels) axes.push_back(axis), factors.push_back(frequency);
  const at::Tensor of_rows = at::tensor(places, at::kLong).view({-1, 2}).to(at::kFloat);
  const at::Tensor angles =
      of_rows.index_select(1, at::tensor(axes, at::kLong)) * at::tensor(factors);
  layout.cos = angles.cos().unsqueeze(1);
  layout.sin = angles.sin().unsqueeze(1);
}

void set_positions(const spec::VisionSpec& spec, const std::vector<TowerTile>& tiles,
                   TowerLayout& layout) {
  std::vector<float> weights;
  std::vector<int64_t> rows;
  int64_t taps = 1;
  switch (spec.positions) {
    case spec::TowerPositions::kNone:
      return;
    case spec::TowerPositions::kTable:
      rows = table_rows(spec, tiles, layout.class_tokens);
      break;
    case spec::TowerPositions::kAxes:
      rows = axes_rows(spec, tiles), taps = 2;
      break;
    case spec::TowerPositions::kInterpolated:
      add_interpolated(spec, tiles, rows, weights), taps = 4;
      break;
  }
  layout.positions = at::tensor(rows, at::kLong);
  if (taps > 1) layout.positions = layout.positions.view({-1, taps});
  if (!weights.empty()) layout.position_weights = at::tensor(weights).view({-1, taps});
}

/// Rows of each tile, numbered in its document.
BatchContext numbered_rows(const std::vector<TowerTile>& tiles, int64_t class_tokens,
                           int64_t patches_per_row, const BatchContext& like) {
  BatchContext context;
  context.dropout_seed = like.dropout_seed;
  context.step = like.step;
  context.step_device = like.step_device;
  context.training = like.training;
  context.adapters = like.adapters;
  if (!like.training) return context;
  for (const TowerTile& tile : tiles) {
    const int64_t count = class_tokens + tile.patches() / patches_per_row;
    // Class tokens make a tile longer than its patches: numbers of different tiles must not meet.
    const uint32_t first = 2 * tile.first_patch;
    for (int64_t i = 0; i < count; ++i)
      context.token_keys.push_back({tile.document, first + static_cast<uint32_t>(i)});
  }
  return context;
}

void order_by_windows(const spec::VisionSpec& spec, const std::vector<TowerTile>& tiles,
                      TowerLayout& layout) {
  if (spec.window_side == 0) return;
  Windows windows = windows_of(spec, tiles);
  layout.windows = std::move(windows.runs);
  layout.order = at::tensor(windows.order, at::kLong);
  for (at::Tensor* rows : {&layout.positions, &layout.position_weights, &layout.cos, &layout.sin})
    if (rows->defined()) *rows = squares_in(*rows, layout.order);
}

}  // namespace

TowerLayout tower_layout(const spec::VisionSpec& spec, const std::vector<TowerTile>& tiles,
                         const BatchContext& like) {
  const int64_t side = spec.merger.side;
  for (const TowerTile& tile : tiles)
    SFTRUN_CHECK(tile.rows > 0 && tile.rows % side == 0 && tile.columns > 0 &&
                 tile.columns % side == 0);
  TowerLayout layout;
  layout.class_tokens = spec.class_token.empty() ? 0 : 1;
  layout.tiles = runs_of(tiles, layout.class_tokens);
  set_positions(spec, tiles, layout);
  set_rope(spec, tiles, layout);
  order_by_windows(spec, tiles, layout);
  layout.seen_in_tiles = documents_of(layout.tiles);
  layout.seen_in_windows = documents_of(layout.windows);
  layout.rows = numbered_rows(tiles, layout.class_tokens, 1, like);
  layout.merged =
      numbered_rows(tiles, spec.drops_class_token ? 0 : layout.class_tokens, side * side, like);
  return layout;
}

}  // namespace sftrun::layers
