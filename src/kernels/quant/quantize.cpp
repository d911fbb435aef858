#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <numeric>
#include <span>

#include "../parallel.h"
#include "sftrun/core/error.h"
#include "sftrun/core/finite.h"
#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/dynamic_map.h"
#include "sftrun/kernels/quant.h"
#include "sftrun/weights/packed.h"

/// Compiled with -ffp-contract=off: codes and scales are bit-equal to the references'.
namespace sftrun::kernels {
namespace {

constexpr float kLeast = 1e-38F;  // smallest divisor

/// Bounds between the ascending values of a table, and the codes of the values in that order.
struct Steps {
  std::array<float, 15> bounds;
  std::array<uint8_t, 16> order;
};

Steps steps_of(std::span<const float, 16> table) {
  Steps steps{};
  std::iota(steps.order.begin(), steps.order.end(), uint8_t{0});
  // Stable, as torch's sort: +0 stays before -0.
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

/// The last, partial block. As in bitsandbytes it is divided by absmax, while whole blocks are
/// multiplied by 1 / absmax.
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

/// Limits LibTorch to one thread, so that sums do not depend on the number of threads.
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

/// Rounds as bitsandbytes' CPU library (`DynamicMap::codes`).
uint8_t nested_code(float value, const uint8_t* codes) {
  constexpr int64_t kSteps = 65536;
  if (!(value >= -1.0F)) return codes[0];  // NaN, too
  const float place = (std::min(value, 1.0F) + 1.0F) * 0.5F * (kSteps - 1) + 0.5F;
  return codes[static_cast<size_t>(place)];
}

void nest(QuantizedMatrix& matrix) {
  const at::Tensor centred = matrix.absmax - (matrix.offset = mean_of(matrix.absmax));
  const int64_t n = centred.numel(),
                blocks = (n + weights::kNestedBlock - 1) / weights::kNestedBlock;
  matrix.codes = at::empty({n}, at::kByte);
  matrix.nested_absmax = at::empty({blocks}, at::kFloat);
  const auto* values = centred.const_data_ptr<float>();
  const auto* codes = dynamic_map(true).codes.const_data_ptr<uint8_t>();
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = block * weights::kNestedBlock,
                  end = std::min(n, first + weights::kNestedBlock);
    float largest = 0;
    for (int64_t i = first; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
    matrix.nested_absmax.data_ptr<float>()[block] = largest;
    const float inverse = 1.0F / largest;  // if all values are 0: x is NaN, whose code is 0
    for (int64_t i = first; i < end; ++i)
      matrix.codes.data_ptr<uint8_t>()[i] = nested_code(values[i] * inverse, codes);
  }
  matrix.absmax.reset();
}

void require_finite(const at::Tensor& values, const std::string& name) {
  constexpr int64_t kGrain = 1 << 16;  // minimum number of values per thread
  const auto* from = values.const_data_ptr<float>();
  std::atomic<bool> finite = true;
  parallel_for(0, values.numel(), kGrain, [&](int64_t begin, int64_t end) {
    if (!all_finite({from + begin, static_cast<size_t>(end - begin)})) finite = false;
  });
  if (finite) return;
  throw DataError(fmt::format("tensor `{}` has NaN or infinite values", name), {},
                  "download or copy the model again");
}

/// bitsandbytes converts weights to fp16 before it quantises them to int8.
at::Tensor as_fp16(const at::Tensor& weight, const std::string& name) {
  const at::Tensor halves = weight.to(at::kHalf).to(at::kFloat);
  if (!all_finite({halves.const_data_ptr<float>(), static_cast<size_t>(halves.numel())})) {
    throw DataError(fmt::format("tensor `{}` holds NaN, or values beyond the 65504 "
                                "of fp16, by way of which int8 is made",
                                name),
                    {}, "use fp8 or nf4; where these refuse it, too, download the model again");
  }
  return halves;
}

QuantizedMatrix quantize_8bit(const at::Tensor& weight, QuantFormat format,
                              const std::string& name) {
  QuantizedMatrix matrix{.format = format, .rows = weight.size(0), .columns = weight.size(1)};
  matrix.packed = at::empty({matrix.numel()}, at::kByte);
  matrix.absmax = at::empty({matrix.rows}, at::kFloat);
  auto* codes = matrix.packed.data_ptr<uint8_t>();
  auto* factors = matrix.absmax.data_ptr<float>();
  const int64_t n = matrix.columns;
  // Converted to fp32 in parts, which limits temporary memory.
  constexpr int64_t kPart = 1 << 20;  // values
  const int64_t part = std::max<int64_t>(1, kPart / std::max<int64_t>(1, n));
  for (int64_t first = 0; first < matrix.rows; first += part) {
    const int64_t count = std::min(part, matrix.rows - first);
    const at::Tensor rows = weight.narrow(0, first, count);
    const at::Tensor values = format == QuantFormat::kInt8
                                  ? as_fp16(rows, name)
                                  : rows.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    if (format == QuantFormat::kFp8) require_finite(values, name);
    auto* from = values.data_ptr<float>();
    parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        uint8_t* to = codes + (first + i) * n;
        factors[first + i] = format == QuantFormat::kFp8
                                 ? cpu_kernels().quantize_row_e4m3(from + i * n, n, to)
                                 : cpu_kernels().quantize_row_int8(from + i * n, n, to);
      }
    });
  }
  return matrix;
}

}  // namespace

QuantizedMatrix quantize(const at::Tensor& weight, const QuantOptions& options,
                         const std::string& name) {
  SFTRUN_CHECK(weight.is_cpu() && weight.is_contiguous() && weight.dim() == 2);
  SFTRUN_CHECK(options.format != QuantFormat::kGgml);
  const at::NoGradGuard no_grad;
  if (is_8bit(options.format)) return quantize_8bit(weight, options.format, name);
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
  const Steps& steps = steps_of(options.format);
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

}  // namespace sftrun::kernels
