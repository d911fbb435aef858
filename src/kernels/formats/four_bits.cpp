#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "../operands.h"
#include "../parallel.h"
#include "../row_kernels.h"
#include "blocks.h"
#include "cuda_formats.h"
#include "format_ops.h"
#include "require_finite.h"
#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/dynamic_map.h"
#include "thin_rows.h"

/// nf4 and fp4 of bitsandbytes (0.50: backends/default/ops.py, functional.py; QLoRA,
/// arXiv:2305.14314, section 3), which differ in the codes' values alone.
/// Compiled with -ffp-contract=off: codes, scales and values are bit-equal to bitsandbytes'.
namespace sftrun::kernels {
namespace {

using Table = std::array<float, 16>;

/// bitsandbytes' backends/utils.py; QLoRA paper, appendix E.
constexpr Table kNf4Table = {-1.0F,
                             -0.6961928009986877F,
                             -0.5250730514526367F,
                             -0.39491748809814453F,
                             -0.28444138169288635F,
                             -0.18477343022823334F,
                             -0.09105003625154495F,
                             0.0F,
                             0.07958029955625534F,
                             0.16093020141124725F,
                             0.24611230194568634F,
                             0.33791524171829224F,
                             0.44070982933044434F,
                             0.5626170039176941F,
                             0.7229568362236023F,
                             1.0F};
/// 0, 0.0625, 8, 12, 4, 6, 2, 3 and their negatives, over 12 (functional.py, get_4bit_type).
constexpr Table kFp4Table = {0.0F,       0.0625F / 12, 8.0F / 12,  1.0F,          4.0F / 12,  0.5F,
                             2.0F / 12,  0.25F,        -0.0F,      -0.0625F / 12, -8.0F / 12, -1.0F,
                             -4.0F / 12, -0.5F,        -2.0F / 12, -0.25F};

constexpr float kMin = 1e-38F;  // smallest divisor

/// Bounds between the ascending values of a table, and the codes of the values in that order.
struct Steps {
  std::array<float, 15> bounds;
  std::array<uint8_t, 16> order;
};

Steps steps_of(const Table& table) {
  Steps steps{};
  std::iota(steps.order.begin(), steps.order.end(), uint8_t{0});
  // Stable, as torch's sort: +0 stays before -0.
  std::stable_sort(steps.order.begin(), steps.order.end(),
                   [&](uint8_t a, uint8_t b) { return table[a] < table[b]; });
  for (size_t i = 0; i < 15; ++i)
    steps.bounds[i] = (table[steps.order[i]] + table[steps.order[i + 1]]) / 2;
  return steps;
}

uint8_t code_of(float scaled, const Steps& steps) {
  const auto below = std::lower_bound(steps.bounds.begin(), steps.bounds.end(), scaled);
  return steps.order[static_cast<size_t>(below - steps.bounds.begin())];
}

/// The last, partial block. As in bitsandbytes it is divided by absmax, while whole blocks are
/// multiplied by 1 / absmax.
void quantize_rest(const float* values, int64_t n, const Steps& steps, uint8_t* packed,
                   float* absmax) {
  float largest = kMin;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(values[i]));
  *absmax = largest;
  const auto code = [&](int64_t i) {
    return code_of(i < n ? std::clamp(values[i] / largest, -1.0F, 1.0F) : 0.0F, steps);
  };
  for (int64_t i = 0; i < n; i += 2)
    packed[i / 2] = static_cast<uint8_t>(code(i) << 4 | code(i + 1));
}

/// Limits LibTorch to one thread for calls by this thread, so that sums do not depend on the number of
/// threads. at::set_num_threads would limit others as well: those that call LibTorch for the first time
/// meanwhile keep one thread.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { ::omp_set_num_threads(1); }
  ~OneThread() { ::omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

float mean_of(const at::Tensor& values) {
  const OneThread one;
  return values.mean().item<float>();
}

/// Rounds as bitsandbytes' CPU library (`DynamicMap::codes`).
uint8_t nested_code(float value, const uint8_t* codes) {
  constexpr int64_t kSteps = 65536;
  if (!(value >= -1.0F)) return codes[0];  // NaN, too
  const float place = (std::min(value, 1.0F) + 1.0F) * 0.5F * (kSteps - 1) + 0.5F;
  return codes[static_cast<size_t>(place)];
}

void nest(QuantizedMatrix& matrix) {
  const at::Tensor centred = matrix.absmax - (matrix.offset = mean_of(matrix.absmax));
  const int64_t n = centred.numel(), blocks = (n + kNestedBlock - 1) / kNestedBlock;
  matrix.codes = at::empty({n}, at::kByte);
  matrix.nested_absmax = at::empty({blocks}, at::kFloat);
  const auto* values = centred.const_data_ptr<float>();
  const auto* codes = dynamic_map(true).codes.const_data_ptr<uint8_t>();
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = block * kNestedBlock, end = std::min(n, first + kNestedBlock);
    float largest = 0;
    for (int64_t i = first; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
    matrix.nested_absmax.data_ptr<float>()[block] = largest;
    const float inverse = 1.0F / largest;  // if all values are 0: x is NaN, whose code is 0
    for (int64_t i = first; i < end; ++i)
      matrix.codes.data_ptr<uint8_t>()[i] = nested_code(values[i] * inverse, codes);
  }
  matrix.absmax.reset();
}

template <const Table& kTable>
QuantizedMatrix quantize_blocks(const at::Tensor& weight, const QuantOptions& options,
                                const std::string& name) {
  static const Steps steps = steps_of(kTable);
  SFTRUN_CHECK(options.block_size > 0 && options.block_size % 2 == 0);
  QuantizedMatrix matrix{.format = options.format,
                         .rows = weight.size(0),
                         .columns = weight.size(1),
                         .block_size = options.block_size};
  matrix.packed = at::empty({(matrix.numel() + 1) / 2}, at::kByte);
  matrix.absmax = at::empty({matrix.num_blocks()}, at::kFloat);
  const at::Tensor values = weight.to(at::kFloat);
  require_finite(values, name);
  const auto* from = values.const_data_ptr<float>();
  auto* packed = matrix.packed.data_ptr<uint8_t>();
  auto* absmax = matrix.absmax.data_ptr<float>();
  const int64_t size = options.block_size, whole = matrix.numel() / size;
  constexpr int64_t kGrain = 64;  // minimum number of blocks per thread
  parallel_for(0, whole, kGrain, [&](int64_t begin, int64_t end) {
    cpu_kernels().quantize_4bit(from + begin * size, (end - begin) * size, size,
                                steps.bounds.data(), steps.order.data(), packed + begin * size / 2,
                                absmax + begin);
  });
  const int64_t rest = matrix.numel() - whole * size;
  if (rest > 0)
    quantize_rest(from + whole * size, rest, steps, packed + whole * size / 2, absmax + whole);
  if (options.nested) nest(matrix);
  return matrix;
}

template <const Table& kTable, typename T>
void unpack_blocks(const QuantizedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                   int64_t columns, T* out, int64_t stride) {
  constexpr int64_t kScalesAtOnce = 64;  // block scales per iteration
  const auto* packed = matrix.packed.const_data_ptr<uint8_t>();
  const bool is_contiguous = stride == columns && columns == matrix.columns;
  const int64_t runs = is_contiguous ? 1 : rows, length = is_contiguous ? rows * columns : columns;
  std::array<float, kScalesAtOnce> scales;
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t begin = (row + run) * matrix.columns + column, end = begin + length;
    for (int64_t i = begin; i < end;) {
      const int64_t block = i / matrix.block_size,
                    stop = std::min(end, (block + kScalesAtOnce) * matrix.block_size),
                    last = (stop - 1) / matrix.block_size;
      matrix.block_scales(block, {scales.data(), static_cast<size_t>(last - block + 1)});
      row_kernels<T>().dequantize_4bit(packed, i, stop - i, matrix.block_size, kTable.data(),
                                       scales.data(), out + run * stride + (i - begin));
      i = stop;
    }
  }
}

bool has_whole_groups_of_codes(const QuantizedMatrix& w) {
  constexpr int64_t kGroup = 32;
  return w.columns % kGroup == 0 && w.block_size % kGroup == 0;
}

template <const Table& kTable>
at::Tensor thin_product_of_blocks(const at::Tensor& x, const QuantizedMatrix& w) {
  const DotKernels& dots = cpu_kernels().dots;
  const at::Tensor in_fp32 = x.to(at::kFloat).contiguous(), split = at::empty_like(in_fp32);
  dots.split_pairs(in_fp32.const_data_ptr<float>(), split.numel(), split.data_ptr<float>());
  const ThinTokens tokens(split);
  const int64_t n = w.columns;
  FourBitRow any{.packed = w.packed.const_data_ptr<uint8_t>(),
                 .first = 0,
                 .block_size = w.block_size,
                 .table = kTable.data(),
                 .scales = w.is_nested() ? nullptr : w.absmax.const_data_ptr<float>()};
  return each_row(x, w.rows, [&, any] {
    std::vector<float> nested(static_cast<size_t>(n / w.block_size + 2));
    return [&, any, nested](int64_t row, float* out) mutable {
      const int64_t first = row * n, block = first / w.block_size,
                    last = (first + n - 1) / w.block_size;
      if (w.is_nested())
        w.block_scales(block, {nested.data(), static_cast<size_t>(last - block + 1)});
      FourBitRow part = any;
      part.packed += first / 2;
      part.first = first % w.block_size;
      part.scales = w.is_nested() ? nested.data() : any.scales + block;
      dots.dot_4bit(part, n, tokens.x, tokens.count, out);
    };
  });
}

template <const Table& kTable>
constexpr FormatOps ops_of_blocks(QuantFormat format) {
  return {.format = format,
          .quantize = quantize_blocks<kTable>,
          .unpack_fp32 = unpack_blocks<kTable, float>,
          .unpack_bf16 = unpack_blocks<kTable, uint16_t>,
          .row_bytes = nullptr,
          .splits_at = splits_at_block,
          .narrow = narrow_blocks,
          .select_rows = select_rows_of_blocks,
          .values_per_block = values_of_block,
          .part = part_of_blocks,
          .require_sizes = require_block_sizes,
          .has_whole_groups = has_whole_groups_of_codes,
          .thin_product = thin_product_of_blocks<kTable>,
          .table = kTable,
          .cuda = &kFourBitLaunches};
}

}  // namespace

constinit const FormatOps kNf4Ops = ops_of_blocks<kNf4Table>(QuantFormat::kNf4);
constinit const FormatOps kFp4Ops = ops_of_blocks<kFp4Table>(QuantFormat::kFp4);

}  // namespace sftrun::kernels
