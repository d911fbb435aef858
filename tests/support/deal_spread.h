#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

#include "sftrun/data/deal.h"

/// How long parts wait for each other.
namespace sftrun::test {

/// As without a deal.
inline data::Deal deal_in_order(size_t num_bins, int64_t size) {
  data::Deal deal;
  for (int64_t bin = 0; bin < static_cast<int64_t>(num_bins); ++bin) {
    if (bin % size == 0) deal.emplace_back();
    deal.back().push_back(bin);
  }
  return deal;
}

inline int64_t cost_of(const std::vector<int64_t>& places, std::span<const int64_t> costs) {
  int64_t sum = 0;
  for (const int64_t place : places) sum += costs[static_cast<size_t>(place)];
  return sum;
}

/// The share of the time of a step that parts wait, on average, if they meet after each micro-step.
inline double waiting_share(const data::Deal& deal, std::span<const int64_t> costs, int64_t parts) {
  int64_t waited_for = 0;
  for (size_t first = 0; first < deal.size(); first += static_cast<size_t>(parts)) {
    int64_t most = 0;
    for (size_t i = first; i < std::min(deal.size(), first + static_cast<size_t>(parts)); ++i)
      most = std::max(most, cost_of(deal[i], costs));
    waited_for += most;
  }
  const int64_t all = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  return 1 - static_cast<double>(all) / static_cast<double>(parts * waited_for);
}

}  // namespace sftrun::test
