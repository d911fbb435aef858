#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sftrun/data/batch_plan.h"

namespace sftrun::data {

/// How many examples are packed at once: enough for full bins, few enough that an epoch's order
/// stays random over the whole data set.
inline constexpr int64_t kPackingWindow = 8192;

/// First-fit decreasing over consecutive windows of `order`: within a window the longest example
/// goes first, each into the first bin with room. The emptiest bin of a window is taken apart and
/// packed again with the next one. O(n log n).
///
/// Within a bin examples stand in the order of `order`; bins stand in the order of their first
/// example's place in it.
/// @param order indices into `lengths`   @param capacity tokens of a bin; a longer example has a
/// bin to itself
/// @param window_ends if not null, receives for each window the number of bins up to its end
std::vector<Bin> pack_first_fit_decreasing(std::span<const int64_t> order,
                                           std::span<const int64_t> lengths, int64_t capacity,
                                           int64_t window, std::vector<int64_t>* window_ends);

}  // namespace sftrun::data
