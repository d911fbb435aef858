#pragma once

#include <array>

#include "sftrun/weights/stored_layout.h"

namespace sftrun::weights {

extern const StoredLayout kBitsandbytes4Layout;                            // four_bits.cpp
extern const StoredLayout kBitsandbytes8Layout, kCompressedFp8Layout;      // eight_bits.cpp
extern const StoredLayout kFp8BlocksLayout;                                // fp8_blocks.cpp
extern const StoredLayout kAwqLayout, kGptqLayout, kCompressedInt4Layout;  // int4_groups.cpp

/// One entry for each layout but kNone, in the order of the enumerators.
inline constexpr auto kStoredLayouts = std::to_array<const StoredLayout*>(
    {&kBitsandbytes4Layout, &kBitsandbytes8Layout, &kFp8BlocksLayout, &kCompressedFp8Layout,
     &kAwqLayout, &kGptqLayout, &kCompressedInt4Layout});
static_assert(kStoredLayouts.size() + 1 == kQuantLayouts.size());

/// Views of scales of 8-bit codes.
/// @throws DataError naming the tensor if they are missing, of another type, or no finite numbers
struct ScalesOf8Bits {
  const std::string& name;   ///< of the codes
  const std::string& where;  ///< their file

  const SafetensorsEntry& find(const std::string& scales, const FindEntry& find_entry,
                               CodedMatrix& matrix) const;
  /// @param count of all scales   @param what "row", "block"
  void require_numbers(const CodedMatrix& matrix, int64_t count, const char* what) const;
  [[noreturn]] void fail(const std::string& what) const;
};

/// `CodedTensor::write` of a tensor that is a part of the matrix.
std::function<void(const CodedMatrix&, std::byte*)> bytes_of(
    std::span<const std::byte> CodedMatrix::*part);

}  // namespace sftrun::weights
