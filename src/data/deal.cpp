#include "sftrun/data/deal.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "sftrun/core/error.h"

namespace sftrun::data {
namespace {

struct CostedBatch {
  int64_t cost = 0;
  std::vector<int64_t> bins;
};

std::vector<int64_t> costliest_first(std::span<const int64_t> costs) {
  std::vector<int64_t> places(costs.size());
  std::iota(places.begin(), places.end(), 0);
  std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) {
    return costs[static_cast<size_t>(a)] > costs[static_cast<size_t>(b)];
  });
  return places;
}

/// As few micro-batches as hold all bins, the costliest first.
std::vector<CostedBatch> even_batches(std::span<const int64_t> costs, int64_t size) {
  const auto all = static_cast<size_t>(std::ssize(costs) + size - 1) / static_cast<size_t>(size);
  std::vector<CostedBatch> batches(all);
  using Open = std::pair<int64_t, size_t>;  // cost and number of a micro-batch with room
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
  for (size_t number = 0; number < all; ++number) open.emplace(0, number);
  for (const int64_t place : costliest_first(costs)) {
    const size_t number = open.top().second;
    open.pop();
    CostedBatch& batch = batches[number];
    batch.cost += costs[static_cast<size_t>(place)];
    batch.bins.push_back(place);
    if (std::ssize(batch.bins) < size) open.emplace(batch.cost, number);
  }
  std::stable_sort(batches.begin(), batches.end(),
                   [](const CostedBatch& a, const CostedBatch& b) { return a.cost > b.cost; });
  for (CostedBatch& batch : batches) std::sort(batch.bins.begin(), batch.bins.end());
  return batches;
}

/// Parts by their costs so far, the cheapest first.
std::vector<size_t> cheapest_first(const std::vector<int64_t>& costs) {
  std::vector<size_t> parts(costs.size());
  std::iota(parts.begin(), parts.end(), size_t{0});
  std::stable_sort(parts.begin(), parts.end(),
                   [&](size_t a, size_t b) { return costs[a] < costs[b]; });
  return parts;
}

}  // namespace

Deal deal_by_cost(std::span<const int64_t> costs, int64_t size, int64_t parts) {
  SFTRUN_CHECK(size > 0 && parts > 0);
  std::vector<CostedBatch> batches = even_batches(costs, size);
  const auto stride = static_cast<size_t>(parts);
  const size_t micro_steps = (batches.size() + stride - 1) / stride;
  Deal deal(micro_steps * stride);
  std::vector<int64_t> so_far(stride);
  for (size_t first = 0; first < batches.size(); first += stride) {
    const std::vector<size_t> order = cheapest_first(so_far);
    for (size_t i = 0; i < stride && first + i < batches.size(); ++i) {
      CostedBatch& batch = batches[first + i];
      so_far[order[i]] += batch.cost;
      deal[first + order[i]] = std::move(batch.bins);
    }
  }
  return deal;
}

namespace {

std::vector<int64_t> costs_of(const ExampleStore& examples, std::span<const Bin> bins,
                              const BinCost& cost) {
  std::vector<int64_t> costs;
  costs.reserve(bins.size());
  for (const Bin& bin : bins) costs.push_back(cost(examples, bin));
  return costs;
}

}  // namespace

int64_t tokens_of(const ExampleStore& examples, const Bin& bin) {
  int64_t tokens = 0;
  for (const int64_t example : bin) tokens += examples.stored(example).length;
  return tokens;
}

std::vector<Bin> largest_bins(const ExampleStore& examples, std::vector<Bin> bins, int64_t num_bins,
                              const BinCost& by) {
  std::vector<int64_t> places = costliest_first(costs_of(examples, bins, by));
  places.resize(static_cast<size_t>(std::min(num_bins, std::ssize(bins))));
  std::vector<Bin> largest;
  for (const int64_t place : places) largest.push_back(std::move(bins[static_cast<size_t>(place)]));
  return largest;
}

Deal Dealer::deal(const ExampleStore& examples, std::span<const Bin> bins) const {
  if (!cost) return {};
  return deal_by_cost(costs_of(examples, bins, cost), size, parts);
}

}  // namespace sftrun::data
