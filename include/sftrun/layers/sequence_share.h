#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Context parallelism: ranks that share the tokens of every sequence. Each computes its rows of a
/// micro-batch; in a mixer, where tokens read one another, it has all rows of some of the heads
/// (all-to-all over heads, arXiv:2309.14509).
namespace sftrun::layers {

/// The ranks of such a group. They have the same micro-batches and parameters, and make the same calls
/// in the same order.
class SequenceRanks {
 public:
  SequenceRanks() = default;
  SequenceRanks(const SequenceRanks&) = delete;
  SequenceRanks& operator=(const SequenceRanks&) = delete;
  virtual ~SequenceRanks() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Sums `values` over the ranks, in place.   @param values contiguous, of equal shape on all ranks
  virtual void sum(const at::Tensor& values) const = 0;
  /// Sends to each rank its rows of `in`, and receives those for this rank, in the order of the ranks.
  /// @param out, in [rows, …], contiguous, of the same dtype
  /// @param out_rows, in_rows of each rank
  virtual void exchange(const at::Tensor& out, const at::Tensor& in,
                        const std::vector<int64_t>& out_rows,
                        const std::vector<int64_t>& in_rows) const = 0;
};

/// How the T rows of one micro-batch are divided: each rank has consecutive ones.
class SequenceShare {
 public:
  /// @param rows T, at least one for each rank   @param ranks outlive it
  SequenceShare(const SequenceRanks& ranks, int64_t rows);

  const SequenceRanks& ranks() const { return ranks_; }
  int64_t size() const { return ranks_.size(); }
  int64_t num_rows() const { return begins_.back(); }
  /// This rank's rows are [begin, end) of the micro-batch.
  int64_t begin() const { return begins_[static_cast<size_t>(ranks_.rank())]; }
  int64_t end() const { return begins_[static_cast<size_t>(ranks_.rank()) + 1]; }

  /// @param x [rows of this rank, size * n]   @return [T, n]: all rows of this rank's columns
  at::Tensor columns_of(const at::Tensor& x) const;
  /// @param y [T, n], as `columns_of` returns them   @return [rows of this rank, size * n]
  at::Tensor rows_of(const at::Tensor& y) const;

 private:
  std::vector<int64_t> rows_of_ranks() const;
  const SequenceRanks& ranks_;
  std::vector<int64_t> begins_;  // [size + 1]
};

}  // namespace sftrun::layers
