#include "sftrun/parallel/mesh.h"

#include <gtest/gtest.h>

namespace sftrun::parallel {
namespace {

TEST(Mesh, DataParallelRanksOfEachAxis) {
  const Mesh plain = Mesh::replicated(4, 3);
  EXPECT_EQ(plain.dp_size(), 4);
  EXPECT_EQ(plain.dp_rank(), 3);
  // Two stages, each of 2 x 2 data-parallel ranks of 2 tensor-parallel ranks.
  const MeshSizes sizes{.pp = 2, .dp_replicate = 2, .dp_shard = 2, .tp = 2};
  int counted = 0;
  for (int rank = 0; rank < 16; ++rank) {
    const Mesh mesh(sizes, rank);
    EXPECT_EQ(mesh.world_size(), 16);
    EXPECT_EQ(mesh.dp_size(), 4);
    EXPECT_EQ(mesh.dp_rank(), rank / 2 % 4);
    EXPECT_EQ(mesh.tp_rank(), rank % 2);
    EXPECT_EQ(mesh.counts_loss_of(rank), rank >= 8 && rank % 2 == 0);
    counted += mesh.counts_loss_of(rank) ? 1 : 0;
  }
  EXPECT_EQ(counted, 4);  // one for each part of the batch
}

/// Ranks that divide a matrix are neighbours.
TEST(Mesh, GroupsOfTensorParallelRanks) {
  const Mesh mesh({.dp_replicate = 3, .tp = 2}, 3);
  EXPECT_EQ(mesh.ranks_of_tensor_group(mesh.dp_rank()), (std::vector<int>{2, 3}));
  EXPECT_EQ(mesh.ranks_with_part(mesh.tp_rank()), (std::vector<int>{1, 3, 5}));
}

}  // namespace
}  // namespace sftrun::parallel
