#include "sftrun/parallel/mesh.h"

#include <algorithm>
#include <map>

#include "sftrun/core/error.h"

namespace sftrun::parallel {
namespace {

constexpr Axis kAllAxes[] = {Axis::kPp, Axis::kDpReplicate, Axis::kDpShard, Axis::kTp};

}  // namespace

int MeshSizes::of(Axis axis) const {
  switch (axis) {
    case Axis::kPp:
      return pp;
    case Axis::kDpReplicate:
      return dp_replicate;
    case Axis::kDpShard:
      return dp_shard;
    case Axis::kTp:
      return tp;
  }
  invariant_failed(__FILE__, __LINE__, "an axis");
}

Mesh::Mesh(const MeshSizes& sizes, int rank) : sizes_(sizes), rank_(rank) {
  SFTRUN_CHECK(rank >= 0 && rank < world_size());
}

int Mesh::world_size() const {
  return sizes_.pp * dp_size() * sizes_.tp;
}

int Mesh::stride_of(Axis axis) const {
  int stride = 1;
  for (const Axis closer : kAllAxes)
    if (closer > axis) stride *= sizes_.of(closer);
  return stride;
}

int Mesh::place_of(int rank, Axis axis) const {
  return rank / stride_of(axis) % sizes_.of(axis);
}

std::vector<std::vector<int>> Mesh::groups_along(Axes axes) const {
  const auto first_of = [&](int rank) {
    for (const Axis axis : axes) rank -= place_of(rank, axis) * stride_of(axis);
    return rank;
  };
  std::map<int, std::vector<int>> by_first;
  for (int rank = 0; rank < world_size(); ++rank) by_first[first_of(rank)].push_back(rank);
  std::vector<std::vector<int>> groups;
  for (auto& [first, ranks] : by_first) groups.push_back(std::move(ranks));
  return groups;
}

int Mesh::dp_rank_of(int rank) const {
  return place_of(rank, Axis::kDpReplicate) * sizes_.dp_shard + place_of(rank, Axis::kDpShard);
}

bool Mesh::counts_loss_of(int rank) const {
  return place_of(rank, Axis::kPp) == sizes_.pp - 1 && place_of(rank, Axis::kTp) == 0;
}

Mesh mesh_of(const config::Axes& axes, int rank) {
  return {{.pp = static_cast<int>(axes.pp),
           .dp_replicate = static_cast<int>(axes.dp_replicate),
           .dp_shard = static_cast<int>(axes.dp_shard),
           .tp = static_cast<int>(axes.tp)},
          rank};
}

}  // namespace sftrun::parallel
