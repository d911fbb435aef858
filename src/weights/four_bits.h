#pragma once

#include <string>
#include <vector>

#include "find_entry.h"
#include "sftrun/weights/packed.h"

/// The tensors that bitsandbytes saves of a matrix in 4 bits: NAME, NAME.absmax, NAME.quant_map,
/// NAME.quant_state.bitsandbytes__nf4 (JSON in bytes) and of nested factors NAME.nested_absmax and
/// NAME.nested_quant_map (functional.py, QuantState.as_dict).
namespace sftrun::weights {

/// Whether `name` is in 4 bits.
bool is_in_four_bits(const std::string& name, const FindEntry& find);
/// The tensors that `name` in 4 bits has beside it.
std::vector<std::string> beside_four_bits(const std::string& name, const FindEntry& find);
/// @param shape what the configuration wants
/// @throws DataError naming the tensor: state that cannot be read or is of another shape, parts
/// that are missing or of another size, forms that are not bitsandbytes' own
FourBits read_four_bits(const std::string& name, const std::vector<int64_t>& shape,
                        const FindEntry& find, const std::string& where);

}  // namespace sftrun::weights
