#pragma once

#include <cstdint>
#include <vector>

/// Parts of tensors that the ranks of a tensor-parallel group hold.
namespace sftrun {

/// Indices [begin, begin + count) that a rank has.
struct IndexRange {
  int64_t begin = 0, count = 0;
  int64_t copies = 1;  ///< consecutive ranks that have the same indices
  int64_t copy = 0;    ///< which of them this rank is
  int64_t end() const { return begin + count; }
};

/// A part of a tensor: some indices of one dimension, all of the others.
struct TensorSlice {
  int64_t dim = 0;
  int64_t whole_size = 0;          ///< of that dimension in the whole tensor
  std::vector<IndexRange> ranges;  ///< in the whole tensor, ascending; adjacent in the part

  int64_t size() const {
    int64_t sum = 0;
    for (const IndexRange& range : ranges) sum += range.count;
    return sum;
  }
};

/// How tensor parallelism divides a linear layer. Each rank computes some of the outputs from all
/// inputs (column-parallel in arXiv:1909.08053), or a summand of all outputs from some of the inputs
/// (row-parallel).
enum class Division : uint8_t { kNone, kOutputs, kInputs };

}  // namespace sftrun
