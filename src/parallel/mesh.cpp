#include "sftrun/parallel/mesh.h"

#include "sftrun/core/error.h"

namespace sftrun::parallel {

Mesh::Mesh(const MeshSizes& sizes, int rank) : sizes_(sizes), rank_(rank) {
  SFTRUN_CHECK(rank >= 0 && rank < world_size());
}

int Mesh::world_size() const {
  return sizes_.pp * dp_size() * sizes_.tp;
}

int Mesh::dp_rank_of(int rank) const {
  return rank / sizes_.tp % dp_size();
}

std::vector<int> Mesh::ranks_of_pipeline(int dp_rank) const {
  SFTRUN_CHECK_EQ(sizes_.tp, 1);
  std::vector<int> ranks;
  for (int stage = 0; stage < sizes_.pp; ++stage) ranks.push_back(stage * dp_size() + dp_rank);
  return ranks;
}

std::vector<int> Mesh::ranks_of_stage(int stage) const {
  SFTRUN_CHECK_EQ(sizes_.tp, 1);
  std::vector<int> ranks;
  for (int dp_rank = 0; dp_rank < dp_size(); ++dp_rank)
    ranks.push_back(stage * dp_size() + dp_rank);
  return ranks;
}

std::vector<int> Mesh::ranks_of_tensor_group(int dp_rank) const {
  SFTRUN_CHECK_EQ(sizes_.pp, 1);
  std::vector<int> ranks;
  for (int part = 0; part < sizes_.tp; ++part) ranks.push_back(dp_rank * sizes_.tp + part);
  return ranks;
}

std::vector<int> Mesh::ranks_with_part(int tp_rank) const {
  SFTRUN_CHECK_EQ(sizes_.pp, 1);
  std::vector<int> ranks;
  for (int dp_rank = 0; dp_rank < dp_size(); ++dp_rank)
    ranks.push_back(dp_rank * sizes_.tp + tp_rank);
  return ranks;
}

bool Mesh::counts_loss_of(int rank) const {
  const int stage = rank / (dp_size() * sizes_.tp);
  return stage == sizes_.pp - 1 && rank % sizes_.tp == 0;
}

}  // namespace sftrun::parallel
