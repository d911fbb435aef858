#include "sftrun/parallel/counted_sums.h"

#include <gtest/gtest.h>

#include "support/rank_threads.h"

namespace sftrun::parallel {
namespace {

TEST(CountedSums, AreThoseOfRanksWhoseLossesCount) {
  test::run_ranks(4, [](Communicator& comm) {
    const Mesh mesh({.dp_replicate = 2, .tp = 2}, comm.rank());
    const std::vector<double> own = {1.0, static_cast<double>(comm.rank())};
    EXPECT_EQ(counted_sums(comm, mesh, own), (std::vector<double>{2, 2}));  // of ranks 0 and 2
    EXPECT_EQ(counted_sums(comm, Mesh::replicated(4, comm.rank()), own),
              (std::vector<double>{4, 6}));
  });
}

}  // namespace
}  // namespace sftrun::parallel
