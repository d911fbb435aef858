#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "sftrun/data/deal.h"
#include "sftrun/parallel/mesh.h"

/// The tokens of a rank.
namespace sftrun::train {

/// Which micro-batch of a step is dealt out, and how.
struct MicroBatchDeal {
  int64_t micro_step = 0;  ///< counted from 0
  int64_t size = 1;        ///< packed sequences of one rank
  /// Every data-parallel rank takes the sequences of the first one.
  bool is_same_on_all = false;
  const data::Deal* dealt = nullptr;  ///< of the list; null, or empty: in order
};

/// The places in the list of `num_bins` packed sequences that a micro-batch of a data-parallel rank has.
std::vector<int64_t> places_of(const MicroBatchDeal& deal, const parallel::Mesh& mesh, int dp_rank,
                               int64_t num_bins);

/// The only place where the tokens of a rank are chosen. In order, micro-batch m of data-parallel rank d has
/// the packed sequences from (m * dp_size + d) * size on; ranks with the same d have the same ones.
/// @param bins the whole list of the step, the same on all ranks   @param lost see data::make_batch
data::Batch micro_batch_of(const parallel::Mesh& mesh, const data::ExampleStore& examples,
                           const std::vector<data::Bin>& bins, const MicroBatchDeal& deal,
                           const std::set<int64_t>& lost = {});

/// The mismatched documents of the same examples (data::make_mismatched_batch).
data::Batch mismatched_batch_of(const parallel::Mesh& mesh, const data::ExampleStore& examples,
                                const std::vector<data::Bin>& bins, const MicroBatchDeal& deal,
                                int64_t max_seq_len, const std::set<int64_t>& lost = {});

}  // namespace sftrun::train
