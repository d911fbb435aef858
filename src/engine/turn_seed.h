#pragma once

#include <cstdint>

#include "sftrun/core/rng.h"

namespace sftrun::engine {

/// The seed of answers that go on by a turn. Seeds of different numbers are independent.
/// @param seed of the run   @param number as of Turns
inline uint64_t seed_of_turns(int64_t seed, uint64_t number) {
  RandomStream stream(static_cast<uint64_t>(seed), number);
  const uint64_t high = stream.next_u32();
  return high << 32U | stream.next_u32();
}

}  // namespace sftrun::engine
