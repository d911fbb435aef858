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

bool Mesh::counts_loss_of(int rank) const {
  const int stage = rank / (dp_size() * sizes_.tp);
  return stage == sizes_.pp - 1 && rank % sizes_.tp == 0;
}

}  // namespace sftrun::parallel
