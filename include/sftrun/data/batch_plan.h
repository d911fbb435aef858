#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/data/example.h"
#include "sftrun/data/example_store.h"

/// A global batch is an ordered list of bins, a pure function of (seed, epoch, step), formed before
/// it is dealt to ranks and micro-batches: runs on any number of ranks with any accumulation see
/// the same global batches.
namespace sftrun::data {

struct BatchPlanOptions {
  int64_t max_seq_len = 2048;
  int64_t bin_tokens =
      0;  ///< that a bin holds when packing, but for a longer example; 0: max_seq_len
  int64_t global_batch_size =
      32;  ///< bins per optimizer step (bins hold one example each without packing)
  bool packing = true, shuffle = true;
  bool group_by_length = false;  ///< without packing: batches of examples of similar length
  uint64_t seed = 42;
  /// Examples [begin, end) that an epoch sees `weight` times; empty: all once.
  struct Group {
    int64_t begin = 0, end = 0;
    double weight = 1;
  };
  std::vector<Group> groups;
};

/// A bin: indices of examples whose lengths add up to at most bin_tokens, or one longer example.
using Bin = std::vector<int64_t>;

/// Bins are packed first-fit decreasing over windows of the epoch's (shuffled) order, their order
/// shuffled too; without packing a bin is one example. An example appears exactly once an epoch, or
/// as often as its group's weight says: the whole part of it, and of the rest a share of the
/// examples, drawn anew each epoch.
/// Not thread-safe: it keeps one epoch's bins.
class BatchPlan {
 public:
  /// @param lengths tokens of each example, in [1, max_seq_len]   @param label_tokens labels of
  /// each example
  BatchPlan(std::vector<int64_t> lengths, std::vector<int64_t> label_tokens,
            BatchPlanOptions options);

  int64_t steps_per_epoch(
      int64_t epoch) const;  ///< the last global batch of an epoch may be shorter, never dropped
  /// Bins of optimizer step `step_in_epoch` of `epoch`, in [0, steps_per_epoch(epoch)).
  std::vector<Bin> global_batch(int64_t epoch, int64_t step_in_epoch) const;
  int64_t label_tokens(const std::vector<Bin>& bins) const;
  double fill(int64_t epoch) const;  ///< tokens over bins * max_seq_len

 private:
  const std::vector<Bin>& bins_of(int64_t epoch) const;
  std::vector<int64_t> lengths_, label_tokens_;
  BatchPlanOptions options_;
  mutable int64_t cached_epoch_ = -1;
  mutable std::vector<Bin> cached_bins_;
};

/// The bins of micro-batch `micro_step` on `rank`: slice [(micro_step * world_size + rank) *
/// micro_batch_size, + micro_batch_size) of the global batch; empty past its end.
std::vector<Bin> deal(const std::vector<Bin>& global_batch, int64_t micro_step, int rank,
                      int world_size, int64_t micro_batch_size);

/// Concatenates the bins' examples. `document_keys` are the documents' positions in the global
/// batch's own order, so that they do not depend on the dealing. Past the end of the global batch
/// the batch is empty: T = 0, cu_seqlens = {0}.
/// @param global_batch the whole, to number its documents
Batch make_batch(const ExampleStore& examples, const std::vector<Bin>& global_batch,
                 int64_t first_bin, int64_t num_bins);

}  // namespace sftrun::data
