#pragma once

#include <cstdint>

namespace sftrun::weights {

/// Value types of metadata, as numbered by the format.
enum GgufValueType : uint32_t {
  kU8 = 0,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

inline constexpr uint32_t kGgufMagic = 0x46554747;  ///< "GGUF"
inline constexpr uint64_t kGgufAlignment = 32;      ///< default of general.alignment

}  // namespace sftrun::weights
