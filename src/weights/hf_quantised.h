#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "hf_files.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/weights/packed.h"

/// Matrices that a directory's files hold in 4 or 8 bits (bitsandbytes, compressed-tensors): codes
/// under the matrix's own name, and additional tensors with scales and their description.
namespace sftrun::weights {

using HfQuantisedMatrix = std::variant<FourBits, EightBitRows>;

struct HfQuantised {
  std::map<std::string, HfQuantisedMatrix> matrices;
  std::set<std::string> additional;  ///< the names of their additional tensors
};
/// @throws DataError naming the tensor: see four_bits.h and eight_bits.h
HfQuantised find_quantised(const std::vector<spec::TensorSpec>& specs, const HfFiles& files);

/// `TensorInfo::format`
std::string stored_format_of(const HfQuantisedMatrix& matrix);
/// Codes and scales; the codes first.
std::vector<std::span<const std::byte>> stored_parts(const HfQuantisedMatrix& matrix);
/// Dequantises all `numel` values.
void read_quantised(const HfQuantisedMatrix& matrix, DType dtype, std::byte* destination,
                    int64_t numel);

}  // namespace sftrun::weights
