#pragma once

#include <ATen/core/Tensor.h>

/// bitsandbytes' dynamic map of 8 bits (functional.py, create_dynamic_map; arXiv:1511.04561): 256
/// values between -1 and 1, or 0 and 1, whose fractions have the more steps the larger the
/// exponent.
namespace sftrun::kernels {

struct DynamicMap {
  at::Tensor values;  ///< [256] fp32, ascending
  /// [65536] uint8: the code of the value nearest to -1 + 2 i / 65535. What bitsandbytes' library
  /// for CPUs takes for the nearest to x is what is nearest to the one of these that is next to x
  /// (found by trying its every answer; 0.50.2).
  at::Tensor codes;
  /// [384] uint16 as int16: the same as a search tree of bounds, the first steps of each code but
  /// 0. Level l of the eight begins at 32 l, the last, of 128 bounds, at 256.
  at::Tensor tree;

  DynamicMap to(at::Device device) const;
};

/// On the host, made once. Thread-safe.
const DynamicMap& dynamic_map(bool is_signed);

}  // namespace sftrun::kernels
