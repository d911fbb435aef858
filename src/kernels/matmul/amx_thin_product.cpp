#include "amx_thin_product.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <new>

#include "../parallel.h"
#include "amx_tiles.h"

namespace sftrun::kernels {
namespace {

constexpr int64_t kStageDepth = 1024;  // of a strip, which stays in the L2 cache
constexpr int64_t kFewColumns = 16;

struct FreeAligned {
  void operator()(uint16_t* values) const { ::operator delete[](values, std::align_val_t{64}); }
};
using Packed = std::unique_ptr<uint16_t[], FreeAligned>;  // NOLINT(modernize-avoid-c-arrays)

Packed aligned_values(int64_t count) {
  const auto bytes = static_cast<size_t>(count) * sizeof(uint16_t);
  return Packed(static_cast<uint16_t*>(::operator new[](bytes, std::align_val_t{64})));
}

template <typename T>
class AmxThinProduct {
 public:
  AmxThinProduct(const at::Tensor& x, const at::Tensor& w, at::Tensor& out)
      : w_(static_cast<const T*>(w.const_data_ptr())),
        w_stride_(w.stride(0)),
        tokens_(x.size(0)),
        rows_(w.size(0)),
        depth_(w.size(1)),
        panel_size_(tile_steps(depth_) * kTileStep<T>),
        panels_(aligned_values(tile_steps(tokens_) * panel_size_)),
        out_(static_cast<T*>(out.data_ptr())) {
    const auto* from = static_cast<const T*>(x.const_data_ptr());
    for (int64_t first = 0; first < tokens_; first += kTileColumns) {
      tile_kernels<T>().pack_panel_transposed(from + first * x.stride(0), x.stride(0),
                                              columns_from(first), depth_,
                                              panels_.get() + first / kTileColumns * panel_size_);
    }
  }

  void run() const {
    constexpr int64_t kGrain = 16 * 1024;  // least values of w of a thread
    const int64_t strips = (rows_ + kTileRows - 1) / kTileRows;
    parallel_for(0, strips, std::max<int64_t>(1, kGrain / (kTileRows * depth_)),
                 [&](int64_t begin, int64_t end) {
                   tile_table()->begin();
                   const Packed strip =
                       aligned_values(tile_steps(std::min(depth_, kStageDepth)) * kTileStep<T>);
                   for (int64_t i = begin; i < end; ++i) run_strip(i * kTileRows, strip.get());
                   tile_table()->end();
                 });
  }

 private:
  int64_t columns_from(int64_t first) const { return std::min(kTileColumns, tokens_ - first); }
  int64_t rows_from(int64_t first) const {
    return std::clamp<int64_t>(rows_ - first, 0, kTileRows);
  }

  /// Rows [row, row + 32) of w.
  void run_strip(int64_t row, uint16_t* strip) const {
    alignas(64) float sums[kMaxPanels][kTileRows * kTileColumns];
    for (int64_t k = 0; k < depth_; k += kStageDepth) {
      const int64_t depth = std::min(kStageDepth, depth_ - k);
      tile_kernels<T>().pack_strip(w_ + row * w_stride_ + k, w_stride_, rows_from(row), depth,
                                   strip);
      for (int64_t panel = 0; panel * kTileColumns < tokens_; ++panel) {
        const auto multiply = columns_from(panel * kTileColumns) <= kFewColumns
                                  ? tile_kernels<T>().multiply_few
                                  : tile_kernels<T>().multiply;
        multiply(strip, panels_.get() + panel * panel_size_ + tile_steps(k) * kTileStep<T>,
                 tile_steps(depth), k > 0, sums[panel], kTileColumns,
                 panel == 0 ? coming(row, k) : ComingRows<T>{});
      }
    }
    for (int64_t first = 0; first < tokens_; first += kTileColumns) {
      tile_kernels<T>().store_turned(sums[first / kTileColumns], rows_from(row),
                                     columns_from(first), out_ + first * rows_ + row, rows_);
    }
  }

  /// The strip's next stage, or the next strip.
  ComingRows<T> coming(int64_t row, int64_t k) const {
    const bool goes_on = k + kStageDepth < depth_;
    const int64_t next = goes_on ? row : row + kTileRows;
    return {w_ + next * w_stride_ + (goes_on ? k + kStageDepth : 0), w_stride_, rows_from(next)};
  }

  static constexpr int64_t kMaxPanels = 2;

  const T* w_;
  int64_t w_stride_, tokens_, rows_, depth_, panel_size_;
  Packed panels_;
  T* out_;
};

constexpr int64_t kMaxTokens = 2 * kTileColumns;

}  // namespace

bool amx_thin_product_serves(const at::Tensor& x, const at::Tensor& w) {
  // With fewer, dot products are as fast: an fp32 value takes several instructions to split.
  const int64_t least = x.scalar_type() == at::kFloat ? 24 : 5;
  return x.size(0) >= least && x.size(0) <= kMaxTokens && tile_table() != nullptr &&
         w.stride(1) == 1;
}

at::Tensor amx_thin_product(const at::Tensor& x, const at::Tensor& w) {
  at::Tensor out = at::empty({x.size(0), w.size(0)}, x.options());
  if (x.scalar_type() == at::kFloat)
    AmxThinProduct<float>(x, w, out).run();
  else
    AmxThinProduct<uint16_t>(x, w, out).run();
  return out;
}

}  // namespace sftrun::kernels
