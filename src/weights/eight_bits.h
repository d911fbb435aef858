#pragma once

#include <string>
#include <vector>

#include "find_entry.h"
#include "sftrun/weights/packed.h"

/// The tensors that a matrix in 8 bits has: MODULE.weight and, of bitsandbytes' LLM.int8,
/// MODULE.SCB and MODULE.weight_format; of e4m3 in the layout of compressed-tensors
/// ("float-quantized" with channels or whole tensors) and fbgemm MODULE.weight_scale, perhaps
/// MODULE.input_scale.
namespace sftrun::weights {

/// Whether `name` is in 8 bits.
bool is_in_eight_bits(const std::string& name, const FindEntry& find);
/// The tensors that `name` in 8 bits has beside it.
std::vector<std::string> beside_eight_bits(const std::string& name, const FindEntry& find);
/// @param shape what the configuration wants
/// @throws DataError naming the tensor: parts that are missing, of another size or type, factors
/// that are no positive numbers
EightBitRows read_eight_bits(const std::string& name, const std::vector<int64_t>& shape,
                             const FindEntry& find, const std::string& where);

}  // namespace sftrun::weights
