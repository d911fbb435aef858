#pragma once

#include <vector>

#include "sftrun/config/axes.h"

/// The axes along which the ranks of a run divide the work.
namespace sftrun::parallel {

using config::Axis;
using Axes = std::vector<Axis>;

/// Ranks along each axis.
struct MeshSizes {
  int pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1;
  int of(Axis axis) const;
  bool operator==(const MeshSizes&) const = default;
};

/// Places of ranks along the axes. Immutable.
class Mesh {
 public:
  /// @param rank of the run, below the product of the sizes
  /// @param has_shards one copy of the parameters is divided over ranks
  Mesh(const MeshSizes& sizes, int rank, bool has_shards);
  /// With shards if there are ranks along `dp_shard`.
  Mesh(const MeshSizes& sizes, int rank) : Mesh(sizes, rank, sizes.dp_shard > 1) {}
  /// Data parallelism alone: each of `world_size` ranks has all parameters.
  static Mesh replicated(int world_size, int rank) { return {{.dp_replicate = world_size}, rank}; }

  const MeshSizes& sizes() const { return sizes_; }
  int size(Axis axis) const { return sizes_.of(axis); }
  int world_size() const;
  int rank() const { return rank_; }
  /// The place of this rank along an axis.
  int rank(Axis axis) const { return place_of(rank_, axis); }
  int place_of(int rank, Axis axis) const;
  /// Whether this rank is the first one of its group along `axes`.
  bool is_first_along(const Axes& axes) const;
  /// All groups of ranks that differ only in their places along `axes`. Both are ascending.
  std::vector<std::vector<int>> groups_along(const Axes& axes) const;

  /// Axes over whose ranks one copy of the parameters is divided: `dp_shard`, and with shards `cp`.
  Axes shard_axes() const;
  /// Axes whose ranks own the same values: gradients are summed over them, and one rank writes.
  Axes axes_of_same_values() const;
  /// Number of shards, and that of this rank.
  int shards() const;
  int shard() const;

  /// Number of parts that a global batch is divided into, and the part of this rank. Ranks of one
  /// pipeline, those that share sequences and those of one tensor-parallel group have the same part.
  int dp_size() const { return sizes_.dp_replicate * sizes_.dp_shard; }
  int dp_rank() const { return dp_rank_of(rank_); }
  int dp_rank_of(int rank) const;
  /// Whether the losses of a rank count: of the ranks with the same sequences, the one that computes
  /// the loss and comes first.
  bool counts_loss_of(int rank) const;

 private:
  /// Ranks between two neighbours along an axis.
  int stride_of(Axis axis) const;
  MeshSizes sizes_;
  int rank_;
  bool has_shards_;
};

/// The mesh of a run.   @param axes resolved   @param rank of the run
Mesh mesh_of(const config::Axes& axes, int rank);

}  // namespace sftrun::parallel
