#include <algorithm>
#include <cstring>
#include <list>
#include <memory>

#include "resize_passes.h"
#include "sftrun/core/error.h"

namespace sftrun::images {

std::string_view name_of(Filter filter) {
  switch (filter) {
    case Filter::kNearest:
      return "nearest";
    case Filter::kBox:
      return "box";
    case Filter::kBilinear:
      return "bilinear";
    case Filter::kHamming:
      return "hamming";
    case Filter::kBicubic:
      return "bicubic";
    case Filter::kLanczos:
      return "lanczos";
  }
  return {};
}

std::optional<Filter> filter_numbered(int64_t number) {
  switch (number) {
    case 0:
      return Filter::kNearest;
    case 1:
      return Filter::kLanczos;
    case 2:
      return Filter::kBilinear;
    case 3:
      return Filter::kBicubic;
    case 4:
      return Filter::kBox;
    case 5:
      return Filter::kHamming;
    default:
      return std::nullopt;
  }
}

namespace {

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

uint8_t clipped(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

/// Pillow adds the step again and again, which rounds differently from a product.
std::vector<int64_t> nearest_places(int64_t size_before, int64_t size_after) {
  std::vector<int64_t> places(static_cast<size_t>(size_after));
  const double step = static_cast<double>(size_before) / static_cast<double>(size_after);
  double place = step * 0.5;
  for (int64_t& one : places) {
    one = std::min(static_cast<int64_t>(place), size_before - 1);
    place += step;
  }
  return places;
}

void resize_nearest(const Image& image, int64_t width, int64_t height, Image& result) {
  const auto columns = nearest_places(image.width, width),
             rows = nearest_places(image.height, height);
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* from = image.row(rows[static_cast<size_t>(y)]);
    uint8_t* to = result.row(y);
    for (int64_t x = 0; x < width; ++x, to += 3)
      std::memcpy(to, from + columns[static_cast<size_t>(x)] * 3, 3);
  }
}

/// Pillow does so since 13.0 (pull request 9549).
bool columns_are_first(const Image& image, int64_t width, int64_t height) {
  return height < image.height && image.height - height > 2 * (image.width - width);
}

/// Bytes of resized rows that columns are then made of: they stay in a core's cache.
constexpr int64_t kBandBytes = 1 << 18;

ResizeWeights part_of(const ResizeWeights& weights, int64_t begin, int64_t end) {
  return {.windows = {weights.windows.begin() + begin, weights.windows.begin() + end},
          .stride = weights.stride,
          .values = {weights.values.begin() + begin * weights.stride,
                     weights.values.begin() + end * weights.stride}};
}

/// Both passes, band by band; only the rows that the columns' windows cover. A band begins with the rows of the one before that its windows need.
void resize_rows_first(const Image& image, const RowPass& horizontal, const ResizeWeights& vertical,
                       Rows target) {
  const auto& windows = vertical.windows;
  const int64_t height = std::ssize(windows);
  const auto end_of = [&](int64_t row) {
    const auto& window = windows[static_cast<size_t>(row)];
    return window.first + window.count;
  };
  std::vector<uint8_t> band;
  int64_t begin = 0, end = 0;  // rows of the image that are in the band
  for (int64_t top = 0, bottom = 0; top < height; top = bottom) {
    const int64_t first = windows[static_cast<size_t>(top)].first;
    for (bottom = top + 1; bottom < height; ++bottom)
      if ((end_of(bottom) - first) * target.stride > kBandBytes) break;
    const int64_t last = end_of(bottom - 1), kept = std::max<int64_t>(end - first, 0);
    if (kept > 0)
      std::memmove(band.data(), band.data() + (first - begin) * target.stride,
                   static_cast<size_t>(kept * target.stride));
    band.resize(std::max(band.size(), static_cast<size_t>((last - first) * target.stride)));
    begin = first, end = std::max(last, end);
    horizontal.run({image.row(first + kept), image.width * 3}, image.width, last - first - kept,
                   {band.data() + kept * target.stride, target.stride});
    resize_columns({band.data(), target.stride}, first, target.stride,
                   part_of(vertical, top, bottom), {target.row(top), target.stride});
  }
}

}  // namespace

void RowPass::run(ConstRows from, int64_t width, int64_t height, Rows to) const {
  // Copies of the last rows with bytes behind them.
  const int64_t stride = width * 3 + read_behind_;
  std::vector<uint8_t> copies;
  std::vector<uint8_t> spare;
  for (int64_t y = 0; y < height; y += kRowsAtOnce) {
    const bool needs_copies = (height - y - kRowsAtOnce) * from.stride < read_behind_;
    if (needs_copies) copies.resize(static_cast<size_t>(stride * kRowsAtOnce));
    if (y + kRowsAtOnce > height) spare.resize(width_after_ * 3);
    const uint8_t* rows[kRowsAtOnce];
    uint8_t* results[kRowsAtOnce];
    for (int64_t r = 0; r < kRowsAtOnce; ++r) {
      const bool is_there = y + r < height;
      results[r] = is_there ? to.row(y + r) : spare.data();
      rows[r] = needs_copies ? copies.data() + r * stride : from.row(y + r);
      if (is_there && needs_copies)
        std::memcpy(copies.data() + r * stride, from.row(y + r), static_cast<size_t>(width * 3));
    }
    run_four(rows, results);
  }
}

namespace {

class RowPassPlain final : public RowPass {
 public:
  explicit RowPassPlain(const ResizeWeights& weights)
      : RowPass(weights.windows.size(), 0), weights_(weights) {}

 private:
  void run_four(const uint8_t* const* rows, uint8_t* const* to) const override {
    for (int64_t r = 0; r < kRowsAtOnce; ++r) resize_row(rows[r], to[r]);
  }

  void resize_row(const uint8_t* from, uint8_t* result) const {
    for (size_t i = 0; i < weights_.windows.size(); ++i, result += 3) {
      const auto [first, count] = weights_.windows[i];
      const uint8_t* values = from + first * 3;
      const int32_t* weight = weights_.of(static_cast<int64_t>(i));
      int32_t sums[3] = {kHalf, kHalf, kHalf};
      for (int64_t j = 0; j < count; ++j)
        for (int c = 0; c < 3; ++c) sums[c] += values[j * 3 + c] * weight[j];
      for (int c = 0; c < 3; ++c) result[c] = clipped(sums[c]);
    }
  }

  ResizeWeights weights_;
};

}  // namespace

std::unique_ptr<RowPass> row_pass_plain(const ResizeWeights& weights) {
  return std::make_unique<RowPassPlain>(weights);
}

std::unique_ptr<RowPass> row_pass(const ResizeWeights& weights) {
  for (const auto make : {row_pass_vbmi, row_pass_vnni, row_pass_avx2})
    if (std::unique_ptr<RowPass> pass = make(weights)) return pass;
  return row_pass_plain(weights);
}

void resize_columns_plain(ConstRows from, int64_t first_row, int64_t begin, int64_t bytes,
                          const ResizeWeights& weights, Rows to) {
  std::vector<int32_t> sums(static_cast<size_t>(bytes - begin));
  for (size_t i = 0; i < weights.windows.size(); ++i) {
    const auto [first, count] = weights.windows[i];
    const int32_t* weight = weights.of(static_cast<int64_t>(i));
    std::fill(sums.begin(), sums.end(), kHalf);
    for (int64_t j = 0; j < count; ++j) {
      const uint8_t* values = from.row(first + j - first_row) + begin;
      for (size_t x = 0; x < sums.size(); ++x) sums[x] += values[x] * weight[j];
    }
    uint8_t* result = to.row(static_cast<int64_t>(i)) + begin;
    for (size_t x = 0; x < sums.size(); ++x) result[x] = clipped(sums[x]);
  }
}

void resize_columns(ConstRows from, int64_t first_row, int64_t bytes, const ResizeWeights& weights,
                    Rows to) {
  int64_t done = resize_columns_vnni(from, first_row, bytes, weights, to);
  if (done == 0) done = resize_columns_avx2(from, first_row, bytes, weights, to);
  if (done < bytes) resize_columns_plain(from, first_row, done, bytes, weights, to);
}

Image resize(const Image& image, int64_t width, int64_t height, Filter filter) {
  Image result;
  ResizeMemory memory;
  resize(image, width, height, filter, result, memory);
  return result;
}

/// A plan resizes an image once or twice, each with two sets of weights.
struct ResizeMemory::Impl {
  struct Entry {
    int64_t from, to;
    Filter filter;
    ResizeWeights weights;
    std::unique_ptr<RowPass> rows;  // made when it is first asked for
  };
  std::list<Entry> entries;  // the last one used is the first

  /// Stays valid while seven others are asked for.
  Entry& get(int64_t from, int64_t to, Filter filter) {
    constexpr size_t kMost = 8;
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
      return entry.from == from && entry.to == to && entry.filter == filter;
    });
    if (found != entries.end())
      entries.splice(entries.begin(), entries, found);
    else
      entries.push_front({from, to, filter, weights_of(from, to, filter), nullptr});
    if (entries.size() > kMost) entries.pop_back();
    return entries.front();
  }
  const RowPass& rows(int64_t from, int64_t to, Filter filter) {
    Entry& entry = get(from, to, filter);
    if (!entry.rows) entry.rows = row_pass(entry.weights);
    return *entry.rows;
  }
  const ResizeWeights& columns(int64_t from, int64_t to, Filter filter) {
    return get(from, to, filter).weights;
  }
};
ResizeMemory::ResizeMemory() : impl_(std::make_unique<Impl>()) {}
ResizeMemory::~ResizeMemory() = default;

void resize(const Image& image, int64_t width, int64_t height, Filter filter, Image& result,
            ResizeMemory& memory) {
  SFTRUN_CHECK(width > 0 && height > 0 && image.width > 0 && image.height > 0);
  result.reshape(width, height);
  if (width == image.width && height == image.height) {
    std::copy(image.pixels.begin(), image.pixels.end(), result.pixels.begin());
    return;
  }
  if (filter == Filter::kNearest) return resize_nearest(image, width, height, result);
  const ConstRows source{image.pixels.data(), image.width * 3};
  const Rows target{result.pixels.data(), width * 3};
  ResizeMemory::Impl& tables = memory.impl();
  const auto rows = [&]() -> const RowPass& { return tables.rows(image.width, width, filter); };
  const auto columns = [&]() -> const ResizeWeights& {
    return tables.columns(image.height, height, filter);
  };
  if (height == image.height) {
    rows().run(source, image.width, height, target);
  } else if (width == image.width) {
    resize_columns(source, 0, width * 3, columns(), target);
  } else if (columns_are_first(image, width, height)) {
    std::vector<uint8_t> between(static_cast<size_t>(height * image.width * 3));
    resize_columns(source, 0, image.width * 3, columns(), {between.data(), source.stride});
    rows().run({between.data(), source.stride}, image.width, height, target);
  } else {
    resize_rows_first(image, rows(), columns(), target);
  }
}

}  // namespace sftrun::images
