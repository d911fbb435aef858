#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "../formats/format_ops.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/dynamic_map.h"
#include "sftrun/kernels/quant.h"

/// Compiled with -ffp-contract=off: scales are bit-equal to bitsandbytes'.
namespace sftrun::kernels {
std::span<const float> quant_table(QuantFormat format) {
  return ops_of(format).table;
}

const at::Tensor& nested_map() {
  return dynamic_map(true).values;
}

QuantizedMatrix quantize(const at::Tensor& weight, const QuantOptions& options,
                         const std::string& name) {
  SFTRUN_CHECK(weight.is_cpu() && weight.is_contiguous() && weight.dim() == 2);
  SFTRUN_CHECK(quant_info(options.format).is_made);
  const at::NoGradGuard no_grad;
  return ops_of(options.format).quantize(weight, options, name);
}

std::vector<at::Tensor*> QuantizedMatrix::tensor_members() {
  std::vector<at::Tensor*> present;
  for (at::Tensor* part :
       {&packed, &absmax, &block_rows, &zeros, &column_groups, &codes, &nested_absmax})
    if (part->defined()) present.push_back(part);
  return present;
}

std::vector<at::Tensor> QuantizedMatrix::tensors() const {
  QuantizedMatrix same = *this;
  std::vector<at::Tensor> present;
  for (const at::Tensor* part : same.tensor_members()) present.push_back(*part);
  return present;
}

uint64_t QuantizedMatrix::nbytes() const {
  uint64_t total = 0;
  for (const at::Tensor& part : tensors()) total += part.nbytes();
  return total;
}

int64_t QuantizedMatrix::row_bytes() const {
  const auto bytes = ops_of(*this).row_bytes;
  SFTRUN_CHECK(bytes != nullptr);
  return bytes(*this);
}

void QuantizedMatrix::block_scales(int64_t first, std::span<float> scales) const {
  if (!is_nested()) {
    const auto* from = absmax.const_data_ptr<float>() + first;
    std::copy(from, from + scales.size(), scales.begin());
    return;
  }
  const auto* map = nested_map().const_data_ptr<float>();
  const auto* code = codes.const_data_ptr<uint8_t>();
  const auto* nested_scales = nested_absmax.const_data_ptr<float>();
  const auto count = static_cast<int64_t>(scales.size());
  for (int64_t i = 0; i < count;) {
    const int64_t nested = (first_block + first + i) / nested_block,
                  stop = std::min(count, (nested + 1) * nested_block - first_block - first);
    const float scale = nested_scales[nested];
    for (; i < stop; ++i) {
      const float value = map[code[first + i]] * scale;
      scales[static_cast<size_t>(i)] = value + offset;
    }
  }
}

QuantizedMatrix QuantizedMatrix::to(at::Device device) const {
  if (!device.is_cpu() && ops_of(*this).cuda == nullptr) {
    throw DeviceError(
        fmt::format("matrices in {} cannot be on a GPU: there are no CUDA kernels for "
                    "the format",
                    info().name),
        {}, "run on the CPU (device: cpu), or choose another format");
  }
  QuantizedMatrix moved = *this;
  for (at::Tensor* part : moved.tensor_members()) *part = part->to(device);
  moved.nested_values = is_nested() && !device.is_cpu() ? nested_map().to(device) : at::Tensor();
  return moved;
}

bool QuantizedMatrix::splits_at(int64_t num_rows) const {
  return ops_of(*this).splits_at(*this, num_rows);
}

QuantizedMatrix QuantizedMatrix::narrow(int64_t first, int64_t count) const {
  SFTRUN_CHECK(splits_at(first) && splits_at(count));
  return ops_of(*this).narrow(*this, first, count);
}

int64_t QuantizedMatrix::values_per_block() const {
  return ops_of(*this).values_per_block(*this);
}

bool QuantizedMatrix::has_part(const TensorSlice& slice) const {
  const int64_t block = values_per_block();
  const bool is_of_rows = slice.dim == 0;
  // Rows that are not whole blocks must be cut where a block ends.
  if (!is_of_rows && columns % block != 0) return false;
  return std::all_of(slice.ranges.begin(), slice.ranges.end(), [&](const IndexRange& range) {
    return is_of_rows ? splits_at(range.begin) && splits_at(range.end())
                      : range.begin % block == 0 && range.end() % block == 0;
  });
}

QuantizedMatrix QuantizedMatrix::part(const TensorSlice& slice) const {
  SFTRUN_CHECK(packed.is_cpu() && has_part(slice));
  return ops_of(*this).part(*this, slice);
}

QuantizedMatrix QuantizedMatrix::without_scales() const {
  SFTRUN_CHECK(info().bits == 8);
  QuantizedMatrix codes_alone = *this;
  codes_alone.absmax.reset();
  return codes_alone;
}

}  // namespace sftrun::kernels
