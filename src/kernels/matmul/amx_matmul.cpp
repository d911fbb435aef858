#include "amx_matmul.h"

#include <ATen/ATen.h>

#include <atomic>

#include "../parallel.h"

/// The output is divided into wide panels of columns, and each panel into runs of rows. One panel
/// and run is the work item of a thread: it packs its panel of the right operands, which fills half
/// of the L2 cache, then packs the left operands in strips of 32 rows and multiplies each by the
/// panel. Deeper operands are processed in stages, and the accumulators of all strips are kept
/// between them.
namespace sftrun::kernels {
namespace {

constexpr int64_t kPackedBytes = 1152 * 1024;  // packed panel and strip: over half of 2 MiB L2
constexpr int64_t kWidest = 256;               // columns per panel
constexpr int64_t kStagedStrips = 32;          // strips per item in stages: 1 MiB of accumulators
constexpr int64_t kUnpackedDepth = 256;        // depth of columns dequantised at once

int64_t rounded_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

/// Packing cost, measured on Sapphire Rapids: a panel costs as much as this many rows of products,
/// a strip as much as this many columns.
template <typename T>
constexpr int64_t kPanelRows = kTileParts<T> == 3 ? 100 : 300;
template <typename T>
constexpr int64_t kStripColumns = kTileParts<T> == 3 ? 25 : 50;

template <typename T>
int64_t stage_steps(int64_t width) {
  constexpr int64_t kStepBytes = kTileDepth * kTileParts<T> * 2;  // per row or column
  return std::max<int64_t>(1, kPackedBytes / ((width + kTileRows) * kStepBytes));
}

/// Partition of an output.
struct AmxCut {
  int64_t width, panels, runs, strips;  // strips: of the whole output
  int64_t items() const { return panels * runs; }
  int64_t first_strip(int64_t run) const { return run * strips / runs; }
  int64_t max_strips() const { return (strips + runs - 1) / runs; }
};

/// The partition that minimises the time of the busiest thread.
template <typename T>
AmxCut choose_cut(int64_t rows, int64_t columns, int64_t steps, int64_t threads) {
  const int64_t strips = (rows + kTileRows - 1) / kTileRows;
  AmxCut best{};
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t widest = kWidest; widest >= kTileColumns; widest -= kTileColumns) {
    const int64_t panels = (columns + widest - 1) / widest,
                  width = rounded_up((columns + panels - 1) / panels, kTileColumns);
    const bool is_staged = steps > stage_steps<T>(width);
    const int64_t fewest = is_staged ? (strips + kStagedStrips - 1) / kStagedStrips : 1,
                  most = std::min(strips, fewest + 4 * threads / panels);
    for (int64_t runs = fewest; runs <= most; ++runs) {
      const AmxCut cut{width, panels, runs, strips};
      const int64_t rounds = (cut.items() + threads - 1) / threads,
                    item_rows = cut.max_strips() * kTileRows;
      const int64_t time =
          rounds * (width * (item_rows + kPanelRows<T>)+item_rows * kStripColumns<T>);
      if (time >= least) continue;
      least = time;
      best = cut;
    }
  }
  return best;
}

int64_t steps_of(const Stage& stage) {
  int64_t steps = 0;
  for (const Piece& piece : stage) steps += tile_steps(piece.depth);
  return steps;
}

template <typename T>
int64_t steps_of(const std::vector<Operand<T>>& operands) {
  int64_t steps = 0;
  for (const Operand<T>& o : operands) steps += tile_steps(o.depth);
  return steps;
}

template <typename T, typename U>
class AmxProduct {
 public:
  AmxProduct(const std::vector<Operand<T>>& operands, const ProductOutput<U>& output)
      : operands_(operands),
        output_(output),
        cut_(choose_cut<T>(output.num_rows, output.num_columns, steps_of(operands),
                           at::get_num_threads())),
        stages_(stages_of(operands, stage_steps<T>(cut_.width) * kTileDepth)) {}

  void run() const {
    int64_t steps = 0;
    for (const Stage& stage : stages_) steps = std::max(steps, steps_of(stage));
    const int64_t kept = stages_.size() > 1 ? cut_.max_strips() : 1;
    const int64_t panel = steps * kTileStep<T> * (cut_.width / kTileColumns),
                  strip = steps * kTileStep<T>, sums = kept * kTileRows * cut_.width,
                  unpacked = any_quantized(operands_) ? kTileColumns * kUnpackedDepth : 0;
    const int64_t bytes =
        (panel + strip) * 2 + sums * 4 + unpacked * static_cast<int64_t>(sizeof(T));
    const int64_t threads = std::min<int64_t>(at::get_num_threads(), cut_.items());
    const at::Tensor memory = at::empty({threads, bytes}, at::kByte);
    std::atomic<int64_t> next{0};
    parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
      tile_table()->begin();
      for (int64_t thread = begin; thread < end; ++thread) {
        auto* at = memory.data_ptr<uint8_t>() + thread * bytes;
        auto* packed = reinterpret_cast<uint16_t*>(at);
        auto* floats = reinterpret_cast<float*>(at + (panel + strip) * 2);
        const Scratch scratch{packed, packed + panel, floats, reinterpret_cast<T*>(floats + sums)};
        for (int64_t item = next++; item < cut_.items(); item = next++) run_item(item, scratch);
      }
      tile_table()->end();
    });
  }

 private:
  /// A thread's memory: packed operands, accumulators, dequantised values.
  struct Scratch {
    uint16_t *panel, *strip;
    float* sums;
    T* unpacked;
  };
  struct Columns {
    int64_t first, count;
  };

  void run_item(int64_t item, const Scratch& scratch) const {
    const int64_t column = item / cut_.runs * cut_.width, run = item % cut_.runs;
    const Columns columns{column, std::min(cut_.width, output_.num_columns - column)};
    const int64_t first = cut_.first_strip(run), last = cut_.first_strip(run + 1);
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      pack_panel(stages_[stage], columns, scratch);
      for (int64_t strip = first; strip < last; ++strip) {
        const int64_t row = strip * kTileRows, rows = std::min(kTileRows, output_.num_rows - row);
        float* sums = scratch.sums;
        if (stages_.size() > 1) sums += (strip - first) * kTileRows * cut_.width;
        pack_strip(stages_[stage], row, rows, scratch.strip);
        const int64_t next = strip + 1 < last ? row + kTileRows : first * kTileRows;
        multiply(stages_[stage], columns, next, stage > 0, scratch, sums);
        if (stage + 1 == stages_.size())
          output_.finish(sums, cut_.width, row, rows, columns.first, columns.count);
      }
    }
  }

  /// Each panel of 32 columns prefetches a part of the next strip's rows.
  void multiply(const Stage& stage, const Columns& columns, int64_t next_row, bool add,
                const Scratch& scratch, float* sums) const {
    const int64_t steps = steps_of(stage), panels = tile_steps(columns.count);
    for (int64_t panel = 0; panel < panels; ++panel) {
      const int64_t first = next_row + panel * kTileRows / panels,
                    last = next_row + (panel + 1) * kTileRows / panels;
      tile_kernels<T>().multiply(scratch.strip, scratch.panel + panel * steps * kTileStep<T>, steps,
                                 add, sums + panel * kTileColumns, cut_.width,
                                 rows_of(stage.front(), first, std::min(last, output_.num_rows)));
    }
  }

  ComingRows<T> rows_of(const Piece& piece, int64_t first, int64_t last) const {
    const Operand<T>& o = operands_[piece.operand];
    return {o.x + first * o.x_stride + piece.first, o.x_stride, last - first};
  }

  void pack_strip(const Stage& stage, int64_t row, int64_t rows, uint16_t* strip) const {
    for (const Piece& piece : stage) {
      const Operand<T>& o = operands_[piece.operand];
      tile_kernels<T>().pack_strip(o.x + row * o.x_stride + piece.first, o.x_stride, rows,
                                   piece.depth, strip);
      strip += tile_steps(piece.depth) * kTileStep<T>;
    }
  }

  /// Packs consecutive panels of 32 columns, each with all steps of the stage.
  void pack_panel(const Stage& stage, const Columns& columns, const Scratch& scratch) const {
    const int64_t panel_size = steps_of(stage) * kTileStep<T>;
    uint16_t* to = scratch.panel;
    for (const Piece& piece : stage) {
      const Operand<T>& o = operands_[piece.operand];
      if (o.quantized != nullptr)
        pack_quantized(o, piece, columns, to, panel_size, scratch.unpacked);
      else
        pack_dense(o, piece, columns, to, panel_size);
      to += tile_steps(piece.depth) * kTileStep<T>;
    }
  }

  void pack_dense(const Operand<T>& o, const Piece& piece, const Columns& columns, uint16_t* to,
                  int64_t panel_size) const {
    for (int64_t c = 0; c < columns.count; c += kTileColumns, to += panel_size) {
      const int64_t column = columns.first + c, count = std::min(kTileColumns, columns.count - c);
      if (o.transposed) {
        tile_kernels<T>().pack_panel_transposed(o.w + column * o.w_stride + piece.first, o.w_stride,
                                                count, piece.depth, to);
      } else {
        tile_kernels<T>().pack_panel(o.w + piece.first * o.w_stride + column, o.w_stride, count,
                                     piece.depth, to);
      }
    }
  }

  /// Dequantises in parts that stay in the L1 cache.
  void pack_quantized(const Operand<T>& o, const Piece& piece, const Columns& columns, uint16_t* to,
                      int64_t panel_size, T* unpacked) const {
    if (!o.transposed) {  // the rows of a step, as wide as the panel
      for (int64_t k = 0; k < piece.depth; k += kTileDepth, to += kTileStep<T>) {
        const int64_t depth = std::min(kTileDepth, piece.depth - k);
        dequantize_part(*o.quantized, piece.first + k, depth, columns.first, columns.count,
                        unpacked, columns.count);
        for (int64_t c = 0; c < columns.count; c += kTileColumns) {
          tile_kernels<T>().pack_panel(unpacked + c, columns.count,
                                       std::min(kTileColumns, columns.count - c), depth,
                                       to + c / kTileColumns * panel_size);
        }
      }
      return;
    }
    for (int64_t c = 0; c < columns.count; c += kTileColumns, to += panel_size) {
      const int64_t count = std::min(kTileColumns, columns.count - c);
      for (int64_t k = 0; k < piece.depth; k += kUnpackedDepth) {
        const int64_t depth = std::min(kUnpackedDepth, piece.depth - k);
        dequantize_part(*o.quantized, columns.first + c, count, piece.first + k, depth, unpacked,
                        depth);
        tile_kernels<T>().pack_panel_transposed(unpacked, depth, count, depth,
                                                to + tile_steps(k) * kTileStep<T>);
      }
    }
  }

  const std::vector<Operand<T>>& operands_;
  const ProductOutput<U>& output_;
  AmxCut cut_;
  std::vector<Stage> stages_;
};

}  // namespace

template <typename T, typename U>
void amx_matmul_sum(const std::vector<Operand<T>>& operands, const ProductOutput<U>& output) {
  AmxProduct<T, U>(operands, output).run();
}
template void amx_matmul_sum(const std::vector<Operand<float>>&, const ProductOutput<float>&);
template void amx_matmul_sum(const std::vector<Operand<uint16_t>>&, const ProductOutput<float>&);
template void amx_matmul_sum(const std::vector<Operand<uint16_t>>&, const ProductOutput<uint16_t>&);

}  // namespace sftrun::kernels
