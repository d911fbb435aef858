#include "gguf_decode.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sftrun/weights/convert.h"

namespace sftrun::weights {
namespace {

constexpr int64_t kChunk =
    8192;  ///< values converted at a time: a multiple of every block size; 32 KiB stay in cache

float unstored(GgufForm::Value form, float value) {
  if (form == GgufForm::Value::kPlusOne) return value - 1.0F;
  return form == GgufForm::Value::kMinusExp ? std::log(-value) : value;
}

}  // namespace

std::optional<DType> plain_dtype(const GgmlTypeInfo& type) {
  return float_dtype(type.name);
}

void decode(const GgufTensor& tensor, int64_t first, int64_t count, DType dtype, std::byte* out) {
  const GgmlTypeInfo& type = tensor.type;
  const std::byte* blocks = tensor.bytes.data() + first / type.block_size * type.block_bytes;
  if (const std::optional<DType> plain = plain_dtype(type))
    return convert(*plain, blocks, dtype, out, count);
  if (dtype == DType::kF32) return dequantize(type, blocks, count, reinterpret_cast<float*>(out));
  std::vector<float> chunk(static_cast<size_t>(std::min(count, kChunk)));
  for (int64_t done = 0; done < count; done += kChunk) {
    const int64_t size = std::min(count - done, kChunk);
    dequantize(type, blocks + done / type.block_size * type.block_bytes, size, chunk.data());
    convert(DType::kF32, reinterpret_cast<const std::byte*>(chunk.data()), dtype,
            out + done * size_of(dtype), size);
  }
}

/// Row by row; a vector is one row, or one value per row if its values are reordered.
void decode_in_form(const GgufTensor& tensor, const GgufForm& form, DType dtype, std::byte* out) {
  const bool is_one_row = tensor.shape.size() == 1 && form.rows.empty();
  const int64_t rows = is_one_row ? 1 : tensor.shape[0], size = tensor.numel() / rows;
  std::vector<float> stored(static_cast<size_t>(size)), values(stored.size());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = form.rows.empty() ? row : form.rows[static_cast<size_t>(row)];
    if (form.value == GgufForm::Value::kSame && form.columns.empty()) {
      decode(tensor, from * size, size, dtype, out + row * size * size_of(dtype));
      continue;
    }
    decode(tensor, from * size, size, DType::kF32, reinterpret_cast<std::byte*>(stored.data()));
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = stored[form.columns.empty() ? i : static_cast<size_t>(form.columns[i])];
      values[i] = unstored(form.value, value);
    }
    convert(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), dtype,
            out + row * size * size_of(dtype), size);
  }
}

}  // namespace sftrun::weights
