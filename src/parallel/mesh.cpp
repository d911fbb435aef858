#include "sftrun/parallel/mesh.h"

#include <algorithm>
#include <map>

#include "sftrun/core/error.h"

namespace sftrun::parallel {
namespace {

static_assert(sizeof(MeshSizes) == config::kNumAxes * sizeof(int), "a size for each axis");

int MeshSizes::*size_along(Axis axis) {
  switch (axis) {
    case Axis::kPp:
      return &MeshSizes::pp;
    case Axis::kDpReplicate:
      return &MeshSizes::dp_replicate;
    case Axis::kDpShard:
      return &MeshSizes::dp_shard;
    case Axis::kTp:
      return &MeshSizes::tp;
  }
  invariant_failed(__FILE__, __LINE__, "an axis");
}

}  // namespace

int MeshSizes::of(Axis axis) const {
  return this->*size_along(axis);
}

Mesh::Mesh(const MeshSizes& sizes, int rank) : sizes_(sizes), rank_(rank) {
  SFTRUN_CHECK(rank >= 0 && rank < world_size());
}

int Mesh::world_size() const {
  int ranks = 1;
  for (const config::AxisRow& row : config::axis_rows()) ranks *= sizes_.of(row.axis);
  return ranks;
}

int Mesh::stride_of(Axis axis) const {
  int stride = 1;
  for (const config::AxisRow& row : config::axis_rows())
    if (row.axis > axis) stride *= sizes_.of(row.axis);
  return stride;
}

int Mesh::place_of(int rank, Axis axis) const {
  return rank / stride_of(axis) % sizes_.of(axis);
}

bool Mesh::is_first_along(Axes axes) const {
  return std::all_of(axes.begin(), axes.end(), [&](Axis axis) { return rank(axis) == 0; });
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
  MeshSizes sizes;
  for (const config::AxisRow& row : config::axis_rows())
    sizes.*size_along(row.axis) = static_cast<int>(axes.*row.ranks);
  return {sizes, rank};
}

}  // namespace sftrun::parallel
