#include "sftrun/core/rng.h"

#include <cmath>
#include <numbers>

namespace sftrun {

RandomStream::RandomStream(uint64_t seed, uint64_t stream)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      counter_{0, 0, static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)} {}

uint32_t RandomStream::next_u32() {
  if (used_ == 4) {
    block_ = philox4x32(counter_, key_);
    if (++counter_[0] == 0) ++counter_[1];
    used_ = 0;
  }
  return block_[static_cast<size_t>(used_++)];
}

uint64_t RandomStream::next_below(uint64_t bound) {
  const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
  for (;;) {
    const uint64_t high = next_u32();
    const uint64_t value = high << 32 | next_u32();
    if (value < limit) return value % bound;
  }
}

double RandomStream::next_unit() {
  const uint64_t high = next_u32();
  const uint64_t bits = (high << 32 | next_u32()) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

double RandomStream::next_normal() {
  const double radius = std::sqrt(-2.0 * std::log1p(-next_unit()));
  return radius * std::cos(2.0 * std::numbers::pi * next_unit());
}

}  // namespace sftrun
