#pragma once

#include <vector>

/// The axes along which the ranks of a run divide the work.
namespace sftrun::parallel {

/// Ranks along each axis. Ranks that differ only in a later axis are closer to each other: tensor
/// parallelism communicates most, so its ranks are neighbours.
struct MeshSizes {
  int pp = 1;            ///< pipeline: stages
  int dp_replicate = 1;  ///< data parallelism with copies of the parameters
  int dp_shard = 1;      ///< data parallelism with shards of the parameters
  int tp = 1;            ///< tensor parallelism: parts of each matrix
};

/// Places of ranks along the axes. Immutable.
class Mesh {
 public:
  /// @param rank of the run, below the product of the sizes
  Mesh(const MeshSizes& sizes, int rank);
  /// Data parallelism alone: each of `world_size` ranks has all parameters.
  static Mesh replicated(int world_size, int rank) { return {{.dp_replicate = world_size}, rank}; }

  const MeshSizes& sizes() const { return sizes_; }
  int world_size() const;
  int rank() const { return rank_; }
  /// Number of parts that a global batch is divided into, and the part of this rank. Ranks of one
  /// pipeline or of one tensor-parallel group have the same part.
  int dp_size() const { return sizes_.dp_replicate * sizes_.dp_shard; }
  int dp_rank() const { return dp_rank_of(rank_); }
  int dp_rank_of(int rank) const;
  /// The stage of the pipeline that this rank runs.
  int pp_rank() const { return rank_ / (dp_size() * sizes_.tp); }
  /// The ranks that compute one part of the batch, by stage.   @pre no tensor parallelism
  std::vector<int> ranks_of_pipeline(int dp_rank) const;
  /// The ranks that run a stage, by dp_rank.   @pre no tensor parallelism
  std::vector<int> ranks_of_stage(int stage) const;
  /// The place in the group of ranks that have different parts of each matrix.
  int tp_rank() const { return rank_ % sizes_.tp; }
  /// The ranks that compute this part of the batch, by tp_rank.   @pre no pipeline
  std::vector<int> ranks_of_tensor_group(int dp_rank) const;
  /// The ranks that have the same parts of the matrices, by dp_rank.   @pre no pipeline
  std::vector<int> ranks_with_part(int tp_rank) const;
  /// Which shard of the parameters this rank has.
  int dp_shard_rank() const { return dp_rank() % sizes_.dp_shard; }
  /// Whether the losses of this rank count: of the ranks with the same part of the batch it is the
  /// one that computes the loss (last stage) and comes first.
  bool counts_loss_of(int rank) const;

 private:
  MeshSizes sizes_;
  int rank_;
};

}  // namespace sftrun::parallel
