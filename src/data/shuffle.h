#pragma once

#include <cstdint>
#include <utility>

#include "sftrun/core/rng.h"

namespace sftrun::data {

/// Fisher-Yates over [begin, end).
template <typename Iterator>
void shuffle_range(Iterator begin, Iterator end, RandomStream& random) {
  for (auto remaining = static_cast<uint64_t>(end - begin); remaining > 1; --remaining) {
    std::swap(begin[remaining - 1], begin[random.next_below(remaining)]);
  }
}

}  // namespace sftrun::data
