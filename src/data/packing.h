#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sftrun/data/batch_plan.h"

namespace sftrun::data {

/// Number of examples that are packed together: enough to fill bins, but few enough that the order
/// of an epoch stays random over the whole data set.
inline constexpr int64_t kPackingWindow = 8192;

/// First-fit decreasing over consecutive windows of `order`: in a window, examples are placed from
/// long to short, each into the first bin with enough space. The examples of the emptiest bin of a
/// window are packed again in the next window. O(n log n).
///
/// Examples in a bin, and bins by their first example, are in the order of `order`.
/// @param order indices into `lengths`   @param capacity tokens of a bin; a longer example gets its
/// own bin
/// @param window_ends if not null, receives for each window the number of bins up to its end
std::vector<Bin> pack_first_fit_decreasing(std::span<const int64_t> order,
                                           std::span<const int64_t> lengths, int64_t capacity,
                                           int64_t window, std::vector<int64_t>* window_ends);

/// Bins of units of `together` consecutive examples as bins of examples.
std::vector<Bin> bins_of_examples(std::vector<Bin> bins_of_units, int64_t together);

}  // namespace sftrun::data
