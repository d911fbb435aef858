#include "sftrun/layers/sequence_share.h"

#include <ATen/ATen.h>

#include "sftrun/core/error.h"

namespace sftrun::layers {

SequenceShare::SequenceShare(const SequenceRanks& ranks, int64_t rows) : ranks_(ranks) {
  SFTRUN_CHECK(rows >= ranks.size());
  for (int64_t rank = 0; rank <= ranks.size(); ++rank)
    begins_.push_back(rows * rank / ranks.size());
}

std::vector<int64_t> SequenceShare::rows_of_ranks() const {
  std::vector<int64_t> rows;
  for (size_t rank = 0; rank + 1 < begins_.size(); ++rank)
    rows.push_back(begins_[rank + 1] - begins_[rank]);
  return rows;
}

at::Tensor SequenceShare::columns_of(const at::Tensor& x) const {
  const int64_t own = end() - begin(), columns = x.size(1) / size();
  SFTRUN_CHECK(x.size(0) == own && columns * size() == x.size(1));
  const at::Tensor by_rank = x.view({own, size(), columns}).transpose(0, 1).contiguous();
  const at::Tensor all = at::empty({num_rows(), columns}, x.options());
  ranks_.exchange(all, by_rank.view({size() * own, columns}), rows_of_ranks(),
                  std::vector<int64_t>(static_cast<size_t>(size()), own));
  return all;
}

at::Tensor SequenceShare::rows_of(const at::Tensor& y) const {
  const int64_t own = end() - begin(), columns = y.size(1);
  SFTRUN_CHECK_EQ(y.size(0), num_rows());
  const at::Tensor by_rank = at::empty({size() * own, columns}, y.options());
  ranks_.exchange(by_rank, y.contiguous(), std::vector<int64_t>(static_cast<size_t>(size()), own),
                  rows_of_ranks());
  // Of one column for each rank, reshape returns a view whose rows are not adjacent.
  return by_rank.view({size(), own, columns})
      .transpose(0, 1)
      .reshape({own, size() * columns})
      .contiguous();
}

}  // namespace sftrun::layers
