#pragma once

#include <string>
#include <vector>

#include "find_entry.h"
#include "sftrun/weights/packed.h"

/// The tensors that bitsandbytes saves for a matrix in 4 bits: NAME, NAME.absmax, NAME.quant_map,
/// NAME.quant_state.bitsandbytes__nf4 (JSON as bytes), and with double quantisation
/// NAME.nested_absmax and NAME.nested_quant_map (functional.py, QuantState.as_dict).
namespace sftrun::weights {

/// Whether `name` is stored in 4 bits.
bool has_4bit_codes(const std::string& name, const FindEntry& find);
/// The additional tensors of a 4-bit matrix `name`.
std::vector<std::string> beside_four_bits(const std::string& name, const FindEntry& find);
/// @param shape expected by the configuration
/// @throws DataError naming the tensor: a quantisation state that is invalid or has another shape,
/// parts that are missing or of another size, variants that bitsandbytes does not write
FourBits read_four_bits(const std::string& name, const std::vector<int64_t>& shape,
                        const FindEntry& find, const std::string& where);

}  // namespace sftrun::weights
