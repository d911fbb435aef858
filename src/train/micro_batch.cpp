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

namespace {

std::vector<int64_t> own_places(const parallel::Mesh& mesh, const MicroBatchDeal& deal,
                                const std::vector<data::Bin>& bins) {
  return places_of(deal, mesh, deal.is_same_on_all ? 0 : mesh.dp_rank(), std::ssize(bins));
}

}  // namespace

data::Batch micro_batch_of(const parallel::Mesh& mesh, const data::ExampleStore& examples,
                           const std::vector<data::Bin>& bins, const MicroBatchDeal& deal,
                           const std::set<int64_t>& lost) {
  return data::make_batch(examples, bins, own_places(mesh, deal, bins), lost);
}

data::Batch mismatched_batch_of(const parallel::Mesh& mesh, const data::ExampleStore& examples,
                                const std::vector<data::Bin>& bins, const MicroBatchDeal& deal,
                                int64_t max_seq_len, const std::set<int64_t>& lost) {
  return data::make_mismatched_batch(examples, bins, own_places(mesh, deal, bins), max_seq_len,
                                     lost);
}

}  // namespace sftrun::train
