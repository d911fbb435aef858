#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "sftrun/data/example.h"
#include "sftrun/data/example_store.h"

/// A global batch is an ordered list of bins (packed sequences). It is a pure function of (seed,
/// epoch, step) and is formed before it is divided among ranks and micro-batches: the number of
/// ranks and gradient accumulation do not change it.
namespace sftrun::data {

struct BatchPlanOptions {
  int64_t max_seq_len = 2048;
  int64_t bin_tokens =
      0;  ///< capacity of a bin when packing; a longer example is a bin of its own; 0: max_seq_len
  int64_t global_batch_size =
      32;  ///< bins per optimizer step; without packing a bin is one example
  bool packing = true, shuffle = true;
  bool group_by_length = false;  ///< without packing: examples of similar length per batch
  /// So many consecutive examples stay together, in one bin and in order: 2 for pairs of answers.
  /// Where examples are counted or drawn, these are.
  int64_t documents_together = 1;
  uint64_t seed = 42;
  /// Examples [begin, end), repeated `weight` times per epoch. No groups: every example once.
  struct Group {
    int64_t begin = 0, end = 0;
    double weight = 1;
  };
  std::vector<Group> groups;
};

/// A packed sequence: indices of examples with at most bin_tokens tokens in total, or one longer
/// example (or those that stay together).
using Bin = std::vector<int64_t>;

/// Divides an epoch into global batches. Examples are packed first-fit decreasing over windows of
/// the epoch's (shuffled) order, and the order of bins is shuffled, too; without packing a bin is
/// one example. An example appears once per epoch, or as often as its group's weight says: the
/// whole part of the weight, plus once more for a random share of the examples given by the
/// fraction, drawn again each epoch.
/// Not thread-safe: it caches the bins of one epoch.
class BatchPlan {
 public:
  /// @param lengths tokens of each example, in [1, max_seq_len]   @param label_tokens labels of
  /// each example
  BatchPlan(std::vector<int64_t> lengths, std::vector<int64_t> label_tokens,
            BatchPlanOptions options);

  /// The last global batch of an epoch may be shorter; it is never dropped.
  int64_t steps_per_epoch(int64_t epoch) const;
  int64_t bins_in_epoch(int64_t epoch) const;
  /// Bins of optimizer step `step_in_epoch` of `epoch`, in [0, steps_per_epoch(epoch)).
  std::vector<Bin> global_batch(int64_t epoch, int64_t step_in_epoch) const;
  int64_t label_tokens(const std::vector<Bin>& bins) const;
  /// Tokens of the largest of the micro-batches of `num_bins` bins that the first steps have, at
  /// most those of the first epoch.
  int64_t max_tokens(int64_t num_bins, int64_t num_steps) const;
  /// Tokens of the `num_bins` longest bins of the first epoch.
  int64_t longest_tokens(int64_t num_bins) const;

 private:
  int64_t tokens_of(const Bin& bin) const;
  const std::vector<Bin>& bins_of(int64_t epoch) const;
  std::vector<int64_t> lengths_, label_tokens_;
  std::vector<int64_t> unit_lengths_;  // of the examples that stay together, in total
  BatchPlanOptions options_;
  mutable int64_t cached_epoch_ = -1;
  mutable std::vector<Bin> cached_bins_;
};

/// `Batch::rope_positions` of a batch with images, for models with M-RoPE; without images there are none. Each document begins at 0. A text
/// row is one further than the row before on all axes. Rows of an image are at (p, p + row, p + column), where p is the next
/// position, and the row behind it is at p + the greater of its rows and columns: transformers' `get_rope_index`.
/// @param merge_side patches of the side of the square that one row has (spatial_merge_size)
std::vector<int32_t> rope_positions_of(const Batch& batch, int64_t merge_side);
/// Fills them.
void set_rope_positions(Batch& batch, int64_t merge_side);

/// Concatenates the examples of some bins. `document_keys` are the positions of the documents in the
/// global batch, so that they do not depend on ranks and micro-batches. Without bins the result is
/// empty: T = 0, cu_seqlens = {0}.
/// @param global_batch the whole batch, to number its documents   @param places of the bins in it, ascending
/// @param lost examples whose images cannot be read: blank ones stand in their place, and no token has a label
Batch make_batch(const ExampleStore& examples, const std::vector<Bin>& global_batch,
                 std::span<const int64_t> places, const std::set<int64_t>& lost = {});
/// The same of bins [first_bin, first_bin + num_bins), as far as there are so many.
Batch make_batch(const ExampleStore& examples, const std::vector<Bin>& global_batch,
                 int64_t first_bin, int64_t num_bins, const std::set<int64_t>& lost = {});

/// Documents of mismatched prompts and answers, from which KTO estimates how far the model is from
/// its reference (arXiv:2402.01306, z_0). A document has the prompt of an example and the answer of
/// the next example of the global batch in the order of the data, the last that of the first;
/// if the next ones are answers of the same records (pairs taken apart), of the one behind. So the documents
/// of a global batch do not depend on its bins. A document is cut at max_seq_len, as an
/// example is; labels are on the answer; images and features are those of the prompt. Only examples
/// that are not lost count, and of one record alone there is no document. Documents whose answer has images
/// or features of its own, or begins within them, are left out. `document_keys` are the positions of
/// the examples in the global batch, as in `make_batch`; `is_desirable` is empty. TRL's KTOTrainer
/// takes the answer of the example before: the same documents for a batch in the reverse order.
/// @param examples judged answers   @param global_batch the whole batch   @param places of the bins
/// in it whose prompts are taken, ascending   @param lost examples whose images cannot be read
Batch make_mismatched_batch(const ExampleStore& examples, const std::vector<Bin>& global_batch,
                            std::span<const int64_t> places, int64_t max_seq_len,
                            const std::set<int64_t>& lost = {});

/// What a loss is divided by. An example counts as often as the bins have it.
struct BinCounts {
  int64_t documents = 0, label_tokens = 0;
  double label_weight = 0;  ///< sum of the labels' weights
  /// Of the documents at even numbers of a bin, which are the chosen ones where pairs are together.
  int64_t chosen_labels = 0;
  int64_t chosen_sequence_labels = 0;  ///< if all their tokens but the first had labels
  int64_t desirable = 0;
  int64_t cut_short_labels = 0;  ///< of answers that were cut short when they were sampled
  BinCounts& operator-=(const BinCounts& others);
};
/// Of all documents.
BinCounts counts_of(const ExampleStore& examples, const std::vector<Bin>& bins);
/// Of the documents whose examples are among `some`.
BinCounts counts_among(const ExampleStore& examples, const std::vector<Bin>& bins,
                       const std::set<int64_t>& some);

}  // namespace sftrun::data
