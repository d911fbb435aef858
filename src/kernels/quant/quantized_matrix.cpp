#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "sftrun/core/error.h"
#include "sftrun/kernels/dynamic_map.h"
#include "sftrun/kernels/quant.h"
#include "sftrun/weights/packed.h"

/// Compiled with -ffp-contract=off: scales are bit-equal to bitsandbytes'.
namespace sftrun::kernels {
namespace {

/// bitsandbytes' backends/utils.py; QLoRA paper, appendix E.
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

std::vector<at::Tensor> QuantizedMatrix::tensors() const {
  std::vector<at::Tensor> present;
  for (const at::Tensor* part : {&packed, &absmax, &codes, &nested_absmax})
    if (part->defined()) present.push_back(*part);
  return present;
}

uint64_t QuantizedMatrix::nbytes() const {
  uint64_t total = 0;
  for (const at::Tensor& part : tensors()) total += part.nbytes();
  return total;
}

int64_t QuantizedMatrix::row_bytes() const {
  SFTRUN_CHECK(!is_4bit(format));
  if (is_8bit(format)) return columns;
  const weights::GgmlTypeInfo& type = *weights::ggml_type_info(static_cast<uint32_t>(ggml_type));
  return columns / type.block_size * type.block_bytes;
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
    const int64_t nested = (first_block + first + i) / weights::kNestedBlock,
                  stop =
                      std::min(count, (nested + 1) * weights::kNestedBlock - first_block - first);
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
  moved.nested_values = is_nested() && !device.is_cpu() ? nested_map().to(device) : at::Tensor();
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
  some.packed = packed.narrow(0, first * row_bytes(), count * row_bytes());
  if (absmax.defined()) some.absmax = absmax.narrow(0, first, count);
  return some;
}

QuantizedMatrix QuantizedMatrix::without_factors() const {
  SFTRUN_CHECK(format == QuantFormat::kFp8);
  QuantizedMatrix codes_alone = *this;
  codes_alone.absmax.reset();
  return codes_alone;
}

}  // namespace sftrun::kernels
