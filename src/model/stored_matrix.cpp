#include "stored_matrix.h"

#include <ATen/ATen.h>

#include <cstring>

#include "sftrun/core/error.h"

namespace sftrun::model {
namespace {

using Checkpoint = std::shared_ptr<const weights::Checkpoint>;

/// Where the bytes lie, if they lie as tensors do; else a copy.
at::Tensor tensor_over(std::span<const std::byte> bytes, at::ScalarType dtype,
                       const Checkpoint& checkpoint) {
  const auto count = static_cast<int64_t>(bytes.size() / c10::elementSize(dtype));
  if (reinterpret_cast<uintptr_t>(bytes.data()) % c10::elementSize(dtype) == 0) {
    return at::from_blob(
        const_cast<std::byte*>(bytes.data()), {count}, [checkpoint](void*) {},
        at::TensorOptions().dtype(dtype));
  }
  at::Tensor copy = at::empty({count}, at::TensorOptions().dtype(dtype));
  std::memcpy(copy.data_ptr(), bytes.data(), bytes.size());
  return copy;
}

/// Fixed by the format; what a file has beside its codes must be the same numbers.
void require_same(std::span<const std::byte> stored, std::span<const float> ours,
                  const std::string& name, const char* what) {
  for (size_t i = 0; i < ours.size(); ++i) {
    float value;
    std::memcpy(&value, stored.data() + i * sizeof(float), sizeof(float));
    if (value == ours[i]) continue;
    throw DataError(
        fmt::format("tensor `{}`: {} of its {} is {}, bitsandbytes has {}", name, i, what, value,
                    ours[i]),
        {}, "quantise the model again, or train with tuning.quant: none, which takes any table");
  }
}

kernels::QuantizedMatrix from(const weights::FourBits& stored, const std::string& name,
                              const Checkpoint& checkpoint) {
  kernels::QuantizedMatrix matrix;
  matrix.format = stored.fp4 ? kernels::QuantFormat::kFp4 : kernels::QuantFormat::kNf4;
  matrix.block_size = stored.block_size;
  require_same(stored.table, kernels::quant_table(matrix.format), name, "quant_map");
  matrix.packed = tensor_over(stored.packed, at::kByte, checkpoint);
  if (!stored.nested) {
    matrix.absmax = tensor_over(stored.absmax, at::kFloat, checkpoint);
    return matrix;
  }
  const at::Tensor& map = kernels::nested_map();
  require_same(stored.nested_map, {map.const_data_ptr<float>(), static_cast<size_t>(map.numel())},
               name, "nested_quant_map");
  matrix.codes = tensor_over(stored.absmax, at::kByte, checkpoint);
  matrix.nested_absmax = tensor_over(stored.nested_absmax, at::kFloat, checkpoint);
  matrix.offset = stored.offset;
  return matrix;
}

kernels::QuantizedMatrix from(const weights::GgmlBlocks& stored, const std::string& /*name*/,
                              const Checkpoint& checkpoint) {
  kernels::QuantizedMatrix matrix;
  matrix.format = kernels::QuantFormat::kGgml;
  matrix.ggml_type = static_cast<weights::GgmlType>(stored.type.id);
  if (stored.rows.empty()) {
    matrix.packed = tensor_over(stored.bytes, at::kByte, checkpoint);
    return matrix;
  }
  const size_t row_bytes = stored.bytes.size() / stored.rows.size();
  matrix.packed = at::empty({static_cast<int64_t>(stored.bytes.size())}, at::kByte);
  auto* to = matrix.packed.data_ptr<uint8_t>();
  for (const int64_t row : stored.rows) {
    std::memcpy(to, stored.bytes.data() + static_cast<size_t>(row) * row_bytes, row_bytes);
    to += row_bytes;
  }
  return matrix;
}

}  // namespace

kernels::QuantizedMatrix stored_matrix(const weights::PackedMatrix& packed,
                                       const std::vector<int64_t>& shape, const std::string& name,
                                       Checkpoint checkpoint) {
  SFTRUN_CHECK_EQ(shape.size(), 2U);
  kernels::QuantizedMatrix matrix =
      std::visit([&](const auto& stored) { return from(stored, name, checkpoint); }, packed);
  matrix.rows = shape[0];
  matrix.columns = shape[1];
  return matrix;
}

bool is_stored_as(const weights::PackedMatrix& packed, kernels::QuantFormat format) {
  const auto* four_bits = std::get_if<weights::FourBits>(&packed);
  return four_bits != nullptr && four_bits->fp4 == (format == kernels::QuantFormat::kFp4);
}

}  // namespace sftrun::model
