#pragma once

#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/quant.h"

namespace sftrun::kernels {

/// @pre is_8bit(format)
inline EightBits eight_bits_of(QuantFormat format) {
  return format == QuantFormat::kFp8 ? EightBits::kE4m3 : EightBits::kInt8;
}

}  // namespace sftrun::kernels
