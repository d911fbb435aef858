#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sftrun/data/batch_plan.h"
#include "sftrun/data/example_store.h"

/// How the packed sequences of an optimizer step are dealt out to micro-batches. Which ones the step has, and the keys of their documents,
/// do not depend on it.
namespace sftrun::data {

/// The micro-batches of a step: entry `micro_step * parts + part` has the places of its bins in the step's list, ascending. Parts
/// compute their entries of one micro-step at the same time.
using Deal = std::vector<std::vector<int64_t>>;

/// Deals bins so that the parts have about the same to do in each micro-step, and in the sum. Micro-batches get equal shares of the costs: each bin, the
/// costliest first, goes to the cheapest one with room (longest processing time first: Graham 1969, doi:10.1137/0117039). Micro-batches
/// with similar costs then meet in a micro-step, the costliest first; the part with least so far takes the costliest. There are as
/// many micro-batches as in order. Ties are decided by place.
/// @param costs of each bin, at least 0   @param size most bins of a micro-batch
Deal deal_by_cost(std::span<const int64_t> costs, int64_t size, int64_t parts);

/// What a bin costs, in whatever unit: the same number on every rank.
using BinCost = std::function<int64_t(const ExampleStore& examples, const Bin& bin)>;

/// A `BinCost`: its tokens.
int64_t tokens_of(const ExampleStore& examples, const Bin& bin);
/// The `num_bins` bins with most of `by`, or all: those with most first, equal ones in order.
std::vector<Bin> largest_bins(const ExampleStore& examples, std::vector<Bin> bins, int64_t num_bins,
                              const BinCost& by);

/// Deals the steps of a run.
struct Dealer {
  BinCost cost;  ///< empty: in order
  int64_t size = 1, parts = 1;
  /// Empty: in order.
  Deal deal(const ExampleStore& examples, std::span<const Bin> bins) const;
};

}  // namespace sftrun::data
