#pragma once

#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/quant.h"

namespace sftrun::kernels {

/// @pre the format has 8 bits
inline EightBits eight_bits_of(QuantFormat format) {
  return format == QuantFormat::kFp8 ? EightBits::kE4m3 : EightBits::kInt8;
}

}  // namespace sftrun::kernels
