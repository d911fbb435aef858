#include "sftrun/train/micro_batch.h"

#include <algorithm>
#include <numeric>

#include "sftrun/core/error.h"

namespace sftrun::train {

std::vector<int64_t> places_of(const MicroBatchDeal& deal, const parallel::Mesh& mesh, int dp_rank,
                               int64_t num_bins) {
  const int64_t number = deal.micro_step * mesh.dp_size() + dp_rank;
  if (deal.dealt != nullptr && !deal.dealt->empty()) {
    SFTRUN_CHECK_EQ(std::ssize(*deal.dealt) % mesh.dp_size(), 0);
    return number < std::ssize(*deal.dealt) ? (*deal.dealt)[static_cast<size_t>(number)]
                                            : std::vector<int64_t>();
  }
  const int64_t begin = std::min(number * deal.size, num_bins);
  std::vector<int64_t> places(static_cast<size_t>(std::min(deal.size, num_bins - begin)));
  std::iota(places.begin(), places.end(), begin);
  return places;
}

data::Batch micro_batch_of(const parallel::Mesh& mesh, const data::ExampleStore& examples,
                           const std::vector<data::Bin>& bins, const MicroBatchDeal& deal,
                           const std::set<int64_t>& lost) {
  const int rank = deal.is_same_on_all ? 0 : mesh.dp_rank();
  return data::make_batch(examples, bins, places_of(deal, mesh, rank, std::ssize(bins)), lost);
}

}  // namespace sftrun::train
