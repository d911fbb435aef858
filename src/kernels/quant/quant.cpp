#include "sftrun/kernels/quant.h"
#include "eight_bits_of.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "../brgemm.h"
#include "../parallel.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/cuda_registry.h"
#include "sftrun/kernels/dynamic_map.h"

/// Compiled without contraction to fused multiply-adds: factors are bit-equal to bitsandbytes'.
namespace sftrun::kernels {
namespace {

constexpr int64_t kNestedBlock = 256;
constexpr float kLeast = 1e-38F;  // of what is divided by

/// bitsandbytes' backends/utils.py, of the QLoRA paper's appendix E.
constexpr std::array<float, 16> kNf4Table = {-1.0F,
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
constexpr std::array<float, 16> kFp4Table = {
    0.0F,  0.0625F / 12,  8.0F / 12,  1.0F,  4.0F / 12,  0.5F,  2.0F / 12,  0.25F,
    -0.0F, -0.0625F / 12, -8.0F / 12, -1.0F, -4.0F / 12, -0.5F, -2.0F / 12, -0.25F};

/// Between ascending values: up to which a value is of the code before, and the codes in that
/// order.
struct Steps {
  std::array<float, 15> bounds;
  std::array<uint8_t, 16> order;
};

Steps steps_of(std::span<const float, 16> table) {
  Steps steps{};
  std::iota(steps.order.begin(), steps.order.end(), uint8_t{0});
  // Of the two zeros the first comes first, as torch's sort has it.
  std::stable_sort(steps.order.begin(), steps.order.end(),
                   [&](uint8_t a, uint8_t b) { return table[a] < table[b]; });
  for (size_t i = 0; i < 15; ++i)
    steps.bounds[i] = (table[steps.order[i]] + table[steps.order[i + 1]]) / 2;
  return steps;
}

const Steps& steps_of(QuantFormat format) {
  static const Steps nf4 = steps_of(quant_table(QuantFormat::kNf4)),
                     fp4 = steps_of(quant_table(QuantFormat::kFp4));
  return format == QuantFormat::kNf4 ? nf4 : fp4;
}

uint8_t code_of(float scaled, const Steps& steps) {
  const auto below = std::lower_bound(steps.bounds.begin(), steps.bounds.end(), scaled);
  return steps.order[static_cast<size_t>(below - steps.bounds.begin())];
}

/// The last block, where it is not whole: divided by its factor, where others are multiplied by
/// the inverse.
void quantize_rest(const float* values, int64_t n, const Steps& steps, uint8_t* packed,
                   float* absmax) {
  float largest = kLeast;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(values[i]));
  *absmax = largest;
  const auto code = [&](int64_t i) {
    return code_of(i < n ? std::clamp(values[i] / largest, -1.0F, 1.0F) : 0.0F, steps);
  };
  for (int64_t i = 0; i < n; i += 2)
    packed[i / 2] = static_cast<uint8_t>(code(i) << 4 | code(i + 1));
}

/// Sums that do not hang on the number of threads.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

float mean_of(const at::Tensor& values) {
  const OneThread one;
  return values.mean().item<float>();
}

/// As bitsandbytes' library for CPUs finds the nearest of the map (`DynamicMap::codes`).
uint8_t nested_code(float value, const uint8_t* codes) {
  constexpr int64_t kSteps = 65536;
  if (!(value >= -1.0F)) return codes[0];  // not a number, too
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
    const float inverse = 1.0F / largest;  // all alike: not a number, whose code is 0
    for (int64_t i = first; i < end; ++i)
      matrix.codes.data_ptr<uint8_t>()[i] = nested_code(values[i] * inverse, codes);
  }
  matrix.absmax.reset();
}

int64_t bytes_of_row(const QuantizedMatrix& matrix) {
  const weights::GgmlTypeInfo& type =
      *weights::ggml_type_info(static_cast<uint32_t>(matrix.ggml_type));
  return matrix.columns / type.block_size * type.block_bytes;
}

template <typename T>
void part_of_ggml(const QuantizedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                  int64_t columns, T* out, int64_t stride) {
  const int64_t row_bytes = bytes_of_row(matrix);
  const auto* blocks = matrix.packed.const_data_ptr<uint8_t>() + row * row_bytes;
  for (int64_t i = 0; i < rows; ++i) {
    row_kernels<T>().dequantize_ggml(static_cast<uint32_t>(matrix.ggml_type),
                                     blocks + i * row_bytes, column, columns, out + i * stride);
  }
}

template <typename T>
void part_of_4bit(const QuantizedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                  int64_t columns, T* out, int64_t stride) {
  constexpr int64_t kFactors = 64;  // of a stretch
  const auto* packed = matrix.packed.const_data_ptr<uint8_t>();
  const float* table = quant_table(matrix.format).data();
  const bool is_contiguous = stride == columns && columns == matrix.columns;
  const int64_t runs = is_contiguous ? 1 : rows, length = is_contiguous ? rows * columns : columns;
  std::array<float, kFactors> factors;
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t begin = (row + run) * matrix.columns + column, end = begin + length;
    for (int64_t i = begin; i < end;) {
      const int64_t block = i / matrix.block_size,
                    stop = std::min(end, (block + kFactors) * matrix.block_size),
                    last = (stop - 1) / matrix.block_size;
      matrix.block_factors(block, {factors.data(), static_cast<size_t>(last - block + 1)});
      row_kernels<T>().dequantize_4bit(packed, i, stop - i, matrix.block_size, table,
                                       factors.data(), out + run * stride + (i - begin));
      i = stop;
    }
  }
}

template <typename T>
void part_of_8bit(const QuantizedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                  int64_t columns, T* out, int64_t stride) {
  const auto* codes = matrix.packed.const_data_ptr<uint8_t>();
  const float* factors = matrix.absmax.defined() ? matrix.absmax.const_data_ptr<float>() : nullptr;
  for (int64_t i = 0; i < rows; ++i) {
    row_kernels<T>().dequantize_8bit(
        eight_bits_of(matrix.format), codes + (row + i) * matrix.columns + column, columns,
        factors == nullptr ? 1.0F : factors[row + i], out + i * stride);
  }
}

constexpr int64_t kStreamed = 16 << 20;  // bytes: more than is still in the caches when it is read

/// Others may read what was streamed.
void end_stream() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

/// Rows [row, row + rows) past the caches, by way of a part that stays in the first-level one: an
/// ordinary store first reads what it is about to overwrite.
template <typename T>
void stream_rows(const QuantizedMatrix& matrix, int64_t row, int64_t rows, T* out) {
  constexpr int64_t kPart = 2048;  // values; whole blocks of ggml's
  alignas(64) std::array<T, kPart> part;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t column = 0; column < matrix.columns; column += kPart) {
      const int64_t count = std::min(kPart, matrix.columns - column);
      dequantize_part<T>(matrix, row + i, 1, column, count, part.data(), count);
      cpu_kernels().stream_copy(out + i * matrix.columns + column, part.data(),
                                static_cast<size_t>(count) * sizeof(T));
    }
  }
  end_stream();
}

template <typename T>
void dequantize_into(const QuantizedMatrix& matrix, int64_t first, at::Tensor& out) {
  constexpr int64_t kGrain = 4096;  // values worth a thread
  auto* values = static_cast<T*>(out.data_ptr());
  // Of two bytes a value, ordinary stores measured faster for every format (bench/RESULTS.md).
  const bool is_streamed =
      std::is_same_v<T, float> && static_cast<int64_t>(out.nbytes()) >= kStreamed;
  parallel_for(0, out.size(0), std::max<int64_t>(1, kGrain / std::max<int64_t>(1, matrix.columns)),
               [&](int64_t begin, int64_t end) {
                 T* to = values + begin * matrix.columns;
                 if (is_streamed) return stream_rows(matrix, first + begin, end - begin, to);
                 dequantize_part<T>(matrix, first + begin, end - begin, 0, matrix.columns, to,
                                    matrix.columns);
               });
}

}  // namespace

std::span<const float, 16> quant_table(QuantFormat format) {
  return format == QuantFormat::kNf4 ? kNf4Table : kFp4Table;
}

const at::Tensor& nested_map() {
  return dynamic_map(true).values;
}

const char* quant_name(QuantFormat format) {
  switch (format) {
    case QuantFormat::kNf4:
      return "nf4";
    case QuantFormat::kFp4:
      return "fp4";
    case QuantFormat::kFp8:
      return "fp8";
    case QuantFormat::kInt8:
      return "int8";
    case QuantFormat::kGgml:
      return "gguf";
  }
  invariant_failed(__FILE__, __LINE__, "every QuantFormat has a name");
}

std::optional<QuantFormat> quant_format(std::string_view name) {
  using enum QuantFormat;
  for (const QuantFormat format : {kNf4, kFp4, kFp8, kInt8})
    if (quant_name(format) == name) return format;
  return std::nullopt;
}

uint64_t QuantizedMatrix::nbytes() const {
  uint64_t total = packed.nbytes();
  for (const at::Tensor* part : {&absmax, &codes, &nested_absmax})
    if (part->defined()) total += part->nbytes();
  return total;
}

void QuantizedMatrix::block_factors(int64_t first, std::span<float> factors) const {
  if (!is_nested()) {
    const auto* from = absmax.const_data_ptr<float>() + first;
    std::copy(from, from + factors.size(), factors.begin());
    return;
  }
  const auto* map = nested_map().const_data_ptr<float>();
  const auto* code = codes.const_data_ptr<uint8_t>();
  const auto* scales = nested_absmax.const_data_ptr<float>();
  const auto count = static_cast<int64_t>(factors.size());
  for (int64_t i = 0; i < count;) {
    const int64_t nested = (first_block + first + i) / kNestedBlock,
                  stop = std::min(count, (nested + 1) * kNestedBlock - first_block - first);
    const float scale = scales[nested];
    for (; i < stop; ++i) {
      const float value = map[code[first + i]] * scale;
      factors[static_cast<size_t>(i)] = value + offset;
    }
  }
}

QuantizedMatrix QuantizedMatrix::to(at::Device device) const {
  QuantizedMatrix moved = *this;
  for (at::Tensor* part : {&moved.packed, &moved.absmax, &moved.codes, &moved.nested_absmax})
    if (part->defined()) *part = part->to(device);
  return moved;
}

bool QuantizedMatrix::splits_at(int64_t num_rows) const {
  return !is_4bit(format) || num_rows * columns % block_size == 0;
}

QuantizedMatrix QuantizedMatrix::narrow(int64_t first, int64_t count) const {
  SFTRUN_CHECK(splits_at(first) && splits_at(count));
  QuantizedMatrix some = *this;
  some.rows = count;
  if (is_4bit(format)) {
    const int64_t block = first * columns / block_size;
    some.first_block = first_block + block;
    some.packed = packed.narrow(0, first * columns / 2, count * columns / 2);
    for (at::Tensor* part : {&some.absmax, &some.codes})
      if (part->defined()) *part = part->narrow(0, block, some.num_blocks());
    return some;
  }
  const int64_t row_bytes = is_8bit(format) ? columns : bytes_of_row(*this);
  some.packed = packed.narrow(0, first * row_bytes, count * row_bytes);
  if (absmax.defined()) some.absmax = absmax.narrow(0, first, count);
  return some;
}

QuantizedMatrix QuantizedMatrix::without_factors() const {
  SFTRUN_CHECK(format == QuantFormat::kFp8);
  QuantizedMatrix codes_alone = *this;
  codes_alone.absmax.reset();
  return codes_alone;
}

namespace {

/// bitsandbytes has weights in fp16 before it quantises them.
at::Tensor as_fp16(const at::Tensor& weight) {
  at::Tensor halves = weight.to(at::kHalf).to(at::kFloat);
  if (!halves.isfinite().all().item<bool>()) {
    throw DataError(
        "a weight is no number, or beyond the 65504 of fp16, by way of which int8 is made", {},
        "use fp8 or nf4");
  }
  return halves;
}

QuantizedMatrix quantize_8bit(const at::Tensor& weight, QuantFormat format) {
  QuantizedMatrix matrix{.format = format, .rows = weight.size(0), .columns = weight.size(1)};
  matrix.packed = at::empty({matrix.numel()}, at::kByte);
  matrix.absmax = at::empty({matrix.rows}, at::kFloat);
  // A copy, which the rows' codes are made in.
  const at::Tensor values = format == QuantFormat::kInt8
                                ? as_fp16(weight)
                                : weight.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  auto* from = values.data_ptr<float>();
  auto* codes = matrix.packed.data_ptr<uint8_t>();
  auto* factors = matrix.absmax.data_ptr<float>();
  const int64_t n = matrix.columns;
  parallel_for(0, matrix.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      factors[row] = format == QuantFormat::kFp8
                         ? cpu_kernels().quantize_row_e4m3(from + row * n, n, codes + row * n)
                         : cpu_kernels().quantize_row_int8(from + row * n, n, codes + row * n);
    }
  });
  return matrix;
}

}  // namespace

QuantizedMatrix quantize(const at::Tensor& weight, const QuantOptions& options) {
  SFTRUN_CHECK(weight.is_cpu() && weight.is_contiguous() && weight.dim() == 2);
  SFTRUN_CHECK(options.format != QuantFormat::kGgml);
  const at::NoGradGuard no_grad;
  if (is_8bit(options.format)) return quantize_8bit(weight, options.format);
  SFTRUN_CHECK(options.block_size > 0 && options.block_size % 2 == 0);
  QuantizedMatrix matrix{.format = options.format,
                         .rows = weight.size(0),
                         .columns = weight.size(1),
                         .block_size = options.block_size};
  matrix.packed = at::empty({(matrix.numel() + 1) / 2}, at::kByte);
  matrix.absmax = at::empty({matrix.num_blocks()}, at::kFloat);
  const at::Tensor values = weight.to(at::kFloat);
  const auto* from = values.const_data_ptr<float>();
  auto* packed = matrix.packed.data_ptr<uint8_t>();
  auto* absmax = matrix.absmax.data_ptr<float>();
  const Steps& steps = steps_of(options.format);
  const int64_t size = options.block_size, whole = matrix.numel() / size;
  constexpr int64_t kGrain = 64;  // blocks worth a thread
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

template <typename T>
void dequantize_part(const QuantizedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                     int64_t columns, T* out, int64_t stride) {
  if (matrix.format == QuantFormat::kGgml)
    return part_of_ggml<T>(matrix, row, rows, column, columns, out, stride);
  if (is_8bit(matrix.format))
    return part_of_8bit<T>(matrix, row, rows, column, columns, out, stride);
  part_of_4bit<T>(matrix, row, rows, column, columns, out, stride);
}
template void dequantize_part<float>(const QuantizedMatrix&, int64_t, int64_t, int64_t, int64_t,
                                     float*, int64_t);
template void dequantize_part<uint16_t>(const QuantizedMatrix&, int64_t, int64_t, int64_t, int64_t,
                                        uint16_t*, int64_t);

at::Tensor dequantize(const QuantizedMatrix& matrix, at::ScalarType dtype) {
  if (!matrix.packed.is_cpu()) return cuda_kernels().dequantize(matrix, dtype);
  return dequantize_range(matrix, 0, matrix.rows, dtype);
}

at::Tensor dequantize_range(const QuantizedMatrix& matrix, int64_t first, int64_t count,
                            at::ScalarType dtype) {
  SFTRUN_CHECK(matrix.packed.is_cpu());
  const at::NoGradGuard no_grad;
  const bool has_kernel = dtype == at::kFloat || dtype == at::kBFloat16;
  at::Tensor out =
      at::empty({count, matrix.columns},
                at::TensorOptions().dtype(has_kernel ? dtype : at::ScalarType(at::kFloat)));
  if (dtype == at::kBFloat16)
    dequantize_into<uint16_t>(matrix, first, out);
  else
    dequantize_into<float>(matrix, first, out);
  return out.to(dtype);
}

namespace {

/// Every 256 blocks from the matrix' own beginning share one, so that a row's depends on where it
/// was.
at::Tensor unpacked_factors(const QuantizedMatrix& matrix, const at::Tensor& blocks) {
  if (!matrix.is_nested()) return matrix.absmax.index_select(0, blocks);
  const at::Tensor map = nested_map().to(matrix.codes.device()),
                   codes = matrix.codes.index_select(0, blocks).to(at::kInt),
                   shared = at::floor_divide(blocks + matrix.first_block, kNestedBlock);
  return map.index_select(0, codes)
      .mul_(matrix.nested_absmax.index_select(0, shared))
      .add_(matrix.offset);
}

/// Some rows as a matrix of their own.   @pre where of 4 bits, matrix.splits_at(1)
QuantizedMatrix rows_of(const QuantizedMatrix& matrix, const at::Tensor& rows) {
  QuantizedMatrix some = matrix;
  some.rows = rows.numel();
  some.packed = matrix.packed.view({matrix.rows, -1}).index_select(0, rows).flatten();
  if (is_4bit(matrix.format)) {
    const int64_t blocks = matrix.columns / matrix.block_size;  // of a row
    const at::Tensor chosen = rows.to(at::kLong).unsqueeze(1) * blocks +
                              at::arange(blocks, rows.options().dtype(at::kLong));
    some.absmax = unpacked_factors(matrix, chosen.flatten());
    some.codes.reset();
    some.nested_absmax.reset();
  } else if (matrix.absmax.defined()) {
    some.absmax = matrix.absmax.index_select(0, rows);
  }
  return some;
}

}  // namespace

at::Tensor dequantize_rows(const QuantizedMatrix& matrix, const at::Tensor& rows,
                           at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  if (matrix.splits_at(1)) return dequantize(rows_of(matrix, rows), dtype);
  if (!matrix.packed.is_cpu()) return dequantize(matrix, dtype).index_select(0, rows);
  const at::Tensor indices = rows.to(at::kLong).contiguous();
  at::Tensor out = at::empty({rows.numel(), matrix.columns}, at::kFloat);
  const auto* row = indices.const_data_ptr<int64_t>();
  parallel_for(0, rows.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      dequantize_part<float>(matrix, row[i], 1, 0, matrix.columns,
                             out.data_ptr<float>() + i * matrix.columns, matrix.columns);
  });
  return out.to(dtype);
}

}  // namespace sftrun::kernels
