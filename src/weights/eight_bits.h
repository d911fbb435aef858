#pragma once

#include <string>
#include <vector>

#include "find_entry.h"
#include "sftrun/weights/packed.h"

/// The tensors of a matrix in 8 bits: MODULE.weight, and in bitsandbytes' LLM.int8 MODULE.SCB and
/// MODULE.weight_format; in e4m3 of compressed-tensors ("float-quantized", by channel or tensor)
/// and fbgemm MODULE.weight_scale and optionally MODULE.input_scale.
namespace sftrun::weights {

/// Whether `name` is stored in 8 bits.
bool has_8bit_codes(const std::string& name, const FindEntry& find);
/// The additional tensors of an 8-bit matrix `name`.
std::vector<std::string> beside_eight_bits(const std::string& name, const FindEntry& find);
/// @param shape expected by the configuration
/// @throws DataError naming the tensor: parts that are missing or of another size or type, scales
/// that are not positive
EightBitRows read_eight_bits(const std::string& name, const std::vector<int64_t>& shape,
                             const FindEntry& find, const std::string& where);

}  // namespace sftrun::weights
