#include "tiled_matmul.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>

#include "../parallel.h"
#include "amx_matmul.h"
#include "block_product.h"
#include "few_rows_matmul.h"
#include "sftrun/core/error.h"

/// The output is divided into panels of up to 64 columns, and each panel into runs of row blocks.
/// One panel and run is the work item of a thread: it packs its panel of the right operands, which
/// stays in the L2 cache, and multiplies its row blocks by it; residual and bias are added to each
/// block's fp32 accumulators, which are rounded once. So several products need a single pass over
/// the output, and no thread waits for another's packing. Deeper operands are processed in stages,
/// and the accumulators of all row blocks are kept between them. The result does not depend on
/// which thread runs an item.
namespace sftrun::kernels {
namespace {

constexpr int64_t kRows = 64, kPanel = 64, kVector = 16;
constexpr int64_t kPanelBytes = 512 * 1024;  // of packed right operands, at most
constexpr int64_t kStagedBlocks = 16;        // row blocks of a staged item: 256 KiB of accumulators
constexpr int64_t kItemsPerThread = 8;       // at least, if that leaves enough rows
constexpr int64_t kUnpacked = 128;           // depth dequantised at once; even
constexpr int64_t kFewestBlocks = 4;         // of a run: fewer rows do not pay for packing

/// Largest depth of a stage, for panels of full width. Processors without AVX-512 often have an L2
/// cache of 512 KiB: half of it is better there, by 9% for a depth of 2048.
template <typename T>
int64_t stage_depth() {
  const at::ScalarType dtype = sizeof(T) == sizeof(float) ? at::kFloat : at::kBFloat16;
  const int64_t bytes = block_product_is_compiled(dtype) ? kPanelBytes : kPanelBytes / 2;
  return bytes / static_cast<int64_t>(sizeof(T)) / kPanel;
}

/// Partition of an output [rows, columns].
struct TileCut {
  int64_t num_rows, num_columns, panels, runs, blocks;  // blocks: of the whole output
  TileCut(int64_t rows, int64_t columns, bool staged, int64_t threads)
      : num_rows(rows),
        num_columns(columns),
        panels((columns + kPanel - 1) / kPanel),
        runs(1),
        blocks((rows + kRows - 1) / kRows) {
    const int64_t for_threads = (kItemsPerThread * threads + panels - 1) / panels;
    runs = std::min(for_threads, std::max<int64_t>(1, blocks / kFewestBlocks));
    if (staged) runs = std::max(runs, (blocks + kStagedBlocks - 1) / kStagedBlocks);
  }
  int64_t items() const { return panels * runs; }
  int64_t first_block(int64_t run) const { return run * blocks / runs; }
  /// The last block ends with the last row and may overlap the one before.
  int64_t first_row(int64_t block) const { return std::min(block * kRows, num_rows - kRows); }
};

/// T: dtype of the operands, U: dtype of the output.
template <typename T, typename U>
class TiledProduct {
 public:
  TiledProduct(const std::vector<Operand<T>>& operands, const ProductOutput<U>& output)
      : operands_(operands),
        output_(output),
        stages_(stages_of(operands_, stage_depth<T>())),
        cut_(output.num_rows, output.num_columns, stages_.size() > 1, at::get_num_threads()) {}

  void run() const {
    constexpr int64_t kPacked = kPanelBytes / static_cast<int64_t>(sizeof(float));
    const int64_t kept_blocks = stages_.size() > 1 ? kStagedBlocks : 1;
    const int64_t acc = kept_blocks * kRows * kPanel,
                  unpacked = any_quantized(operands_) ? kUnpacked * kPanel : 0;
    const int64_t scratch = kPacked + acc + unpacked;  // floats per thread
    const int64_t threads = std::min<int64_t>(at::get_num_threads(), cut_.items());
    const at::Tensor memory = at::empty({threads, scratch}, at::kFloat);
    std::atomic<int64_t> next{0};
    parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t thread = begin; thread < end; ++thread) {
        float* packed = memory.data_ptr<float>() + thread * scratch;
        for (int64_t item = next++; item < cut_.items(); item = next++)
          run_item(item, {reinterpret_cast<T*>(packed), packed + kPacked,
                          reinterpret_cast<T*>(packed + kPacked + acc)});
      }
      end_block_products();
    });
  }

 private:
  /// One panel of the output: columns [first, first + valid), computed `width` wide.
  struct Panel {
    int64_t first, valid, width;
  };

  /// A thread's memory: packed right operands, accumulators, dequantised values.
  struct Scratch {
    T* packed;
    float* acc;
    T* unpacked;
  };

  void run_item(int64_t item, const Scratch& scratch) const {
    const int64_t column = item / cut_.runs * kPanel, run = item % cut_.runs,
                  valid = std::min(kPanel, cut_.num_columns - column);
    const Panel panel{column, valid, (valid + kVector - 1) / kVector * kVector};
    const int64_t first = cut_.first_block(run), last = cut_.first_block(run + 1);
    const bool staged = stages_.size() > 1;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      pack(stages_[stage], panel, scratch.packed, scratch.unpacked);
      for (int64_t block = first; block < last; ++block) {
        float* block_acc = scratch.acc + (staged ? (block - first) * kRows * kPanel : 0);
        if (stage + 1 == stages_.size()) prefetch(block, panel);
        multiply(stages_[stage], panel, block, stage > 0, scratch.packed, block_acc);
        if (stage + 1 < stages_.size()) continue;
        finish(block, panel, block_acc);
      }
    }
  }

  /// Dequantises in parts that stay in the L1 cache.
  void pack_quantized(const Operand<T>& o, const Piece& piece, const Panel& panel, T* packed,
                      T* unpacked) const {
    const auto& kernels = kernels_for();
    for (int64_t k = 0; k < piece.depth; k += kUnpacked) {
      const int64_t depth = std::min(kUnpacked, piece.depth - k),
                    stride = dequantize_columns(o, panel.first, panel.valid, piece.first + k, depth,
                                                unpacked);
      const auto pack = o.transposed ? kernels.pack_panel_transposed : kernels.pack_panel;
      pack(unpacked, stride, panel.valid, panel.width, depth, packed + k * panel.width);
    }
  }

  void pack(const Stage& stage, const Panel& panel, T* packed, T* unpacked) const {
    const auto& kernels = kernels_for();
    for (const Piece& piece : stage) {
      const Operand<T>& o = operands_[piece.operand];
      if (o.quantized != nullptr) {
        pack_quantized(o, piece, panel, packed, unpacked);
      } else if (o.transposed) {
        kernels.pack_panel_transposed(o.w + panel.first * o.w_stride + piece.first, o.w_stride,
                                      panel.valid, panel.width, piece.depth, packed);
      } else {
        kernels.pack_panel(o.w + piece.first * o.w_stride + panel.first, o.w_stride, panel.valid,
                           panel.width, piece.depth, packed);
      }
      packed += piece.depth * panel.width;
    }
  }

  void multiply(const Stage& stage, const Panel& panel, int64_t block, bool add, const T* packed,
                float* acc) const {
    for (const Piece& piece : stage) {
      const Operand<T>& o = operands_[piece.operand];
      block_product(kRows, panel.width, piece.depth, add,
                    o.x + cut_.first_row(block) * o.x_stride + piece.first, o.x_stride, packed,
                    acc);
      packed += piece.depth * panel.width;
      add = true;
    }
  }

  /// Prefetches the memory of `finish`: two cache lines per row, too short for the hardware
  /// prefetcher.
  void prefetch(int64_t block, const Panel& panel) const {
    constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(U));
    for (int64_t row = block * kRows; row < std::min((block + 1) * kRows, cut_.num_rows); ++row) {
      const int64_t at = row * cut_.num_columns + panel.first;
      for (int64_t c = 0; c < panel.valid; c += kLine) {
        __builtin_prefetch(output_.out + at + c, 1);
        if (output_.residual) __builtin_prefetch(output_.residual + at + c);
      }
    }
  }

  /// Writes a block's sums, except rows that the block before has written.
  void finish(int64_t block, const Panel& panel, float* acc) const {
    const int64_t row = block * kRows, skip = row - cut_.first_row(block);
    output_.finish(acc + skip * panel.width, panel.width, row, kRows - skip, panel.first,
                   panel.valid);
  }

  static const MatmulKernels<T>& kernels_for() { return row_kernels<T>().matmul; }

  const std::vector<Operand<T>>& operands_;
  const ProductOutput<U>& output_;
  std::vector<Stage> stages_;
  TileCut cut_;
};

template <typename T, typename U>
void run(const std::vector<Product>& terms, const at::Tensor& residual, const at::Tensor& bias,
         const SumFactors& factors, at::Tensor& out) {
  const std::vector<Operand<T>> operands = operands_of<T>(terms);
  const ProductOutput<U> output(out, residual, bias, factors);
  if (output.num_rows < kRows)
    few_rows_matmul_sum(operands, output);
  else if (tile_table() != nullptr)
    amx_matmul_sum(operands, output);
  else
    TiledProduct<T, U>(operands, output).run();
}

bool serves_any_rows(at::ScalarType dtype, int64_t depth) {
  return block_product_serves(dtype) && depth > 0 && (dtype != at::kBFloat16 || depth % 2 == 0);
}

bool serves_any_rows(const Product& term) {
  return term.x.is_cpu() && term.x.stride(1) == 1 &&
         (term.w.quantized != nullptr || term.w.dense.stride(1) == 1) &&
         serves_any_rows(term.x.scalar_type(), term.x.size(1));
}

/// g^T. LibTorch's copy of fp32 uses one thread.
at::Tensor transposed_copy(const at::Tensor& g) {
  if (g.scalar_type() != at::kFloat)
    return at::empty({g.size(1), g.size(0)}, g.options()).copy_(g.t());
  const int64_t tokens = g.size(0), width = (tokens + kVector - 1) / kVector * kVector;
  at::Tensor copy = at::empty({g.size(1), width}, g.options());
  parallel_for(0, g.size(1), 4 * kVector, [&](int64_t begin, int64_t end) {
    row_kernels<float>().matmul.pack_panel_transposed(g.const_data_ptr<float>() + begin,
                                                      g.stride(0), tokens, width, end - begin,
                                                      copy.data_ptr<float>() + begin * width);
  });
  return copy.narrow(1, 0, tokens);
}

}  // namespace

bool tiled_matmul_serves(at::ScalarType dtype, int64_t rows, int64_t depth) {
  return rows >= kRows && serves_any_rows(dtype, depth);
}

bool tiled_matmul_serves(const std::vector<Product>& terms) {
  return terms.front().x.size(0) >= kRows &&
         std::all_of(terms.begin(), terms.end(),
                     [](const Product& term) { return serves_any_rows(term); });
}

bool tiled_matmul_serves_few_rows(const Product& term) {
  return serves_any_rows(term) && !block_product_is_compiled(term.x.scalar_type());
}

void tiled_matmul_sum(const std::vector<Product>& terms, const at::Tensor& residual,
                      const at::Tensor& bias, at::Tensor& out, const SumFactors& factors) {
  SFTRUN_CHECK(out.is_contiguous());
  SFTRUN_CHECK(!residual.defined() || residual.is_contiguous());
  if (out.numel() == 0) return;
  const bool from_bf16 = terms.front().x.scalar_type() == at::kBFloat16;
  if (!from_bf16)
    run<float, float>(terms, residual, bias, factors, out);
  else if (out.scalar_type() == at::kFloat)
    run<uint16_t, float>(terms, residual, bias, factors, out);
  else
    run<uint16_t, uint16_t>(terms, residual, bias, factors, out);
}

bool tiled_matmul_tn_serves(const at::Tensor& g, const at::Tensor& x) {
  const bool is_row_major = g.stride(1) == 1 && x.stride(1) == 1;
  return g.is_cpu() && is_row_major && block_product_serves(g.scalar_type()) &&
         !block_product_is_compiled(g.scalar_type());
}

void add_tiled_matmul_tn(at::Tensor& out, const at::Tensor& g, const at::Tensor& x) {
  SFTRUN_CHECK(out.is_contiguous());
  const int64_t odd = g.scalar_type() == at::kBFloat16 ? g.size(0) % 2 : 0,
                depth = g.size(0) - odd;  // even, as bf16's products want it
  if (odd != 0) out.addr_(g[depth].to(at::kFloat), x[depth].to(at::kFloat));
  if (out.numel() == 0 || depth == 0) return;
  const Product term = {transposed_copy(g.narrow(0, 0, depth)), x.narrow(0, 0, depth),
                        /*transposed=*/false};
  tiled_matmul_sum({term}, /*residual=*/out, {}, out);
}

}  // namespace sftrun::kernels
