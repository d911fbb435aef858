#pragma once

#include <compare>
#include <cstdint>

#include "sftrun/data/example.h"

namespace sftrun::model {

/// The shape of a micro-batch, as far as what is queued for it depends on it.
struct BatchSizes {
  int64_t tokens = 0, labels = 0;  ///< T, N
  int64_t documents = 0;           ///< n, empty ones included
  int64_t longest = 0;             ///< no document is longer
  auto operator<=>(const BatchSizes&) const = default;
};

/// The sizes to fill a batch up to, so that few shapes are met: T to eight sizes between powers of
/// two, N to four, n and the longest document to powers of two. At most an eighth of T is added, or
/// 63 tokens.
/// @param batch not empty
BatchSizes rounded_sizes(const data::Batch& batch);

/// The batch with its longest document, from the beginning, once more behind it and again, without
/// labels, until there are `sizes.tokens`. What layers make of a document's beginning does not
/// depend on what follows, so no activation is larger than the batch's own.
data::Batch filled_up(const data::Batch& batch, const BatchSizes& sizes);

}  // namespace sftrun::model
