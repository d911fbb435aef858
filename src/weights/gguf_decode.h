#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "gguf_form.h"
#include "sftrun/core/dtype.h"
#include "sftrun/weights/gguf.h"

/// The values of a GGUF file's tensors.
namespace sftrun::weights {

/// The float type, if the format is not a block format.
std::optional<DType> plain_dtype(const GgmlTypeInfo& type);
/// Converts (dequantises) values [first, first + count), in the file's order.
/// @param first, count multiples of the block size
void decode(const GgufTensor& tensor, int64_t first, int64_t count, DType dtype, std::byte* out);
/// The same for all values, in Hugging Face's form.
void decode_in_form(const GgufTensor& tensor, const GgufForm& form, DType dtype, std::byte* out);

}  // namespace sftrun::weights
