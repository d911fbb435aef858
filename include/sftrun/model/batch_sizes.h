#pragma once

#include <compare>
#include <cstdint>

#include "sftrun/data/example.h"

namespace sftrun::model {

/// Sizes of a micro-batch on which the CUDA work launched for it depends.
struct BatchSizes {
  int64_t tokens = 0, labels = 0;  ///< T, N
  int64_t documents = 0;           ///< n, including empty documents
  int64_t longest = 0;             ///< upper bound of the document lengths
  auto operator<=>(const BatchSizes&) const = default;
};

/// Sizes to pad a batch to, so that few distinct shapes occur: T to one of eight sizes between
/// powers of two, N to one of four, n and the longest document to powers of two. Adds at most T / 8
/// or 63 tokens, whichever is larger.   @param batch not empty
BatchSizes rounded_sizes(const data::Batch& batch);

/// Pads the batch to `sizes.tokens` with unlabelled copies of its longest document, the last copy
/// truncated. Attention is causal, so a copy's activations equal the original's and are no larger.
data::Batch filled_up(const data::Batch& batch, const BatchSizes& sizes);

}  // namespace sftrun::model
