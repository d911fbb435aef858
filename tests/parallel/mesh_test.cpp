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
    EXPECT_EQ(mesh.rank(Axis::kTp), rank % 2);
    EXPECT_EQ(mesh.counts_loss_of(rank), rank >= 8 && rank % 2 == 0);
    counted += mesh.counts_loss_of(rank) ? 1 : 0;
  }
  EXPECT_EQ(counted, 4);  // one for each part of the batch
}

/// Ranks that divide a matrix are neighbours.
TEST(Mesh, GroupsOfTensorParallelRanks) {
  using Groups = std::vector<std::vector<int>>;
  const Mesh mesh({.dp_replicate = 3, .tp = 2}, 3);
  EXPECT_EQ(mesh.groups_along({Axis::kTp}), (Groups{{0, 1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(mesh.groups_along({Axis::kDpReplicate}), (Groups{{0, 2, 4}, {1, 3, 5}}));
  EXPECT_EQ(mesh.groups_along({}), (Groups{{0}, {1}, {2}, {3}, {4}, {5}}));
}

/// Along several axes a group has the ranks that differ in any of them.
TEST(Mesh, GroupsAlongSeveralAxes) {
  using Groups = std::vector<std::vector<int>>;
  const Mesh mesh({.pp = 2, .dp_shard = 2, .tp = 2}, 5);
  EXPECT_EQ(mesh.groups_along({Axis::kPp, Axis::kDpShard}), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(mesh.groups_along({Axis::kPp, Axis::kDpShard, Axis::kTp}),
            (Groups{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(mesh.rank(Axis::kPp), 1);
  EXPECT_EQ(mesh.rank(Axis::kDpShard), 0);
  EXPECT_EQ(mesh.rank(Axis::kTp), 1);
}

/// One rank of each group writes what all of them own.
TEST(Mesh, KnowsTheFirstRankOfEachGroup) {
  const MeshSizes sizes{.pp = 2, .dp_replicate = 3, .dp_shard = 2, .tp = 2};
  const auto check = [&](const Axes& axes) {
    for (const std::vector<int>& group : Mesh(sizes, 0).groups_along(axes))
      for (const int rank : group)
        EXPECT_EQ(Mesh(sizes, rank).is_first_along(axes), rank == group.front()) << rank;
  };
  check(Mesh(sizes, 0).axes_of_same_values());
  check({Axis::kPp, Axis::kTp});
  check({});
}

/// Ranks that share sequences have the same part of the batch, and the first of them counts its loss.
/// With shards they own different ones, else the same values.
TEST(Mesh, OfRanksThatShareSequences) {
  const config::Axes axes{
      .dp_replicate = 2, .dp_shard = 2, .cp = 3, .level = config::ShardLevel::kWeights};
  std::vector<int> shards, parts;
  int counted = 0;
  for (int rank = 0; rank < 12; ++rank) {
    const Mesh mesh = mesh_of(axes, rank);
    EXPECT_EQ(mesh.shards(), 6);
    shards.push_back(mesh.shard()), parts.push_back(mesh.dp_rank());
    counted += mesh.counts_loss_of(rank) ? 1 : 0;
  }
  EXPECT_EQ(shards, (std::vector<int>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(parts, (std::vector<int>{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3}));
  EXPECT_EQ(counted, 4);
  const Mesh copies = mesh_of({.dp_replicate = 2, .cp = 2}, 1);
  EXPECT_EQ(copies.shards(), 1);
  EXPECT_EQ(copies.axes_of_same_values(), (Axes{Axis::kDpReplicate, Axis::kCp}));
}

TEST(Mesh, IsThatOfTheRunsAxes) {
  const Mesh mesh = mesh_of({.pp = 2, .dp_replicate = 3, .dp_shard = 4, .tp = 5}, 119);
  EXPECT_EQ(mesh.sizes(), (MeshSizes{.pp = 2, .dp_replicate = 3, .dp_shard = 4, .tp = 5}));
  EXPECT_EQ(mesh.rank(), 119);
}

}  // namespace
}  // namespace sftrun::parallel
