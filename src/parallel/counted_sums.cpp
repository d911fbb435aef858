#include "sftrun/parallel/counted_sums.h"

namespace sftrun::parallel {

std::vector<double> counted_sums(Communicator& comm, const Mesh& mesh,
                                 const std::vector<double>& own) {
  std::vector<double> sums(own.size());
  const std::vector<std::vector<double>> ranks = comm.all_gather(own);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!mesh.counts_loss_of(static_cast<int>(rank))) continue;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += ranks[rank][i];
  }
  return sums;
}

}  // namespace sftrun::parallel
