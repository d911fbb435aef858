#include "sftrun/parallel/sequence_group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/rank_threads.h"

namespace sftrun::parallel {
namespace {

/// [rows, columns] with another value in every place.
at::Tensor numbered(int64_t rows, int64_t columns, at::ScalarType dtype) {
  return at::arange(rows * columns, at::kFloat).view({rows, columns}).to(dtype);
}

/// 7 rows over 3 ranks: 2, 2 and 3.
TEST(SequenceGroup, ExchangesRowsForColumns) {
  test::run_ranks(3, [](Communicator& comm) {
    MeshGroups groups(comm, Mesh({.cp = 3}, comm.rank()));
    const SequenceGroup group(groups);
    const layers::SequenceShare share(group, 7);
    const std::vector<int64_t> begins = {0, 2, 4, 7};
    EXPECT_EQ(share.begin(), begins[static_cast<size_t>(comm.rank())]);
    EXPECT_EQ(share.end(), begins[static_cast<size_t>(comm.rank()) + 1]);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor whole = numbered(7, 12, dtype),
                       rows = whole.narrow(0, share.begin(), share.end() - share.begin()),
                       columns = whole.narrow(1, 4 * comm.rank(), 4);
      EXPECT_TRUE(at::equal(share.columns_of(rows), columns));
      EXPECT_TRUE(at::equal(share.rows_of(columns), rows));
      // Of a wider matrix, rows that are further apart than they are long.
      const at::Tensor wide = at::cat({rows, rows}, 1).narrow(1, 0, 12);
      EXPECT_TRUE(at::equal(share.columns_of(wide), columns));
    }
    // Of one column for each rank, too, rows are adjacent: kernels read them so.
    const at::Tensor narrow = numbered(7, 3, at::kFloat),
                     rows = narrow.narrow(0, share.begin(), share.end() - share.begin()),
                     back = share.rows_of(share.columns_of(rows));
    EXPECT_TRUE(at::equal(back, rows));
    EXPECT_TRUE(back.is_contiguous());
    EXPECT_GT(comm.counts().all_to_all.calls, 0);
    comm.leave();
  });
}

/// Ranks that share sequences are apart from those with another part of the batch.
TEST(SequenceGroup, SumsOverTheRanksOfOneSequence) {
  test::run_ranks(4, [](Communicator& comm) {
    MeshGroups groups(comm, Mesh({.dp_replicate = 2, .cp = 2}, comm.rank()));
    const SequenceGroup group(groups);
    const at::Tensor value = at::full({1}, comm.rank(), at::kDouble);
    group.sum(value);
    EXPECT_EQ(value.item<double>(), comm.rank() < 2 ? 1 : 5);
    comm.leave();
  });
}

}  // namespace
}  // namespace sftrun::parallel
