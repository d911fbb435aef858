#pragma once

#include <array>

#include "sftrun/weights/stored_layout.h"

namespace sftrun::weights {

extern const StoredLayout kBitsandbytes4Layout;                        // four_bits.cpp
extern const StoredLayout kBitsandbytes8Layout, kCompressedFp8Layout;  // eight_bits.cpp

/// One entry for each layout but kNone, in the order of the enumerators.
inline constexpr auto kStoredLayouts = std::to_array<const StoredLayout*>(
    {&kBitsandbytes4Layout, &kBitsandbytes8Layout, &kCompressedFp8Layout});
static_assert(kStoredLayouts.size() + 1 == kQuantLayouts.size());

/// `CodedTensor::write` of a tensor that is a part of the matrix.
std::function<void(const CodedMatrix&, std::byte*)> bytes_of(
    std::span<const std::byte> CodedMatrix::*part);

}  // namespace sftrun::weights
