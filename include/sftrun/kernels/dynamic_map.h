#pragma once

#include <ATen/core/Tensor.h>

/// bitsandbytes' dynamic 8-bit map (functional.py, create_dynamic_map; arXiv:1511.04561): 256
/// values in [-1, 1] (signed) or [0, 1] (unsigned). The larger the exponent, the more fraction
/// steps.
namespace sftrun::kernels {

struct DynamicMap {
  at::Tensor values;  ///< [256] fp32, ascending
  /// [65536] uint8: the code of the value nearest to -1 + 2 i / 65535. bitsandbytes' CPU library
  /// rounds x to one of these 65536 points and then to the value nearest to that point (found by
  /// comparing all its results; 0.50.2).
  at::Tensor codes;
  /// [384] uint16 stored as int16: `codes` as a search tree of bounds. The bound of a code > 0 is
  /// the first index i with codes[i] >= code. Level l of 0 to 7 begins at 32 l; the last level, of
  /// 128 bounds, begins at 256.
  at::Tensor tree;

  DynamicMap to(at::Device device) const;
};

/// On the host, built once. Thread-safe.
const DynamicMap& dynamic_map(bool is_signed);

}  // namespace sftrun::kernels
