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
    case Axis::kCp:
      return &MeshSizes::cp;
    case Axis::kTp:
      return &MeshSizes::tp;
  }
  invariant_failed(__FILE__, __LINE__, "an axis");
}

}  // namespace

int MeshSizes::of(Axis axis) const {
  return this->*size_along(axis);
}

Mesh::Mesh(const MeshSizes& sizes, int rank, bool has_shards)
    : sizes_(sizes), rank_(rank), has_shards_(has_shards) {
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

bool Mesh::is_first_along(const Axes& axes) const {
  return std::all_of(axes.begin(), axes.end(), [&](Axis axis) { return rank(axis) == 0; });
}

std::vector<std::vector<int>> Mesh::groups_along(const Axes& axes) const {
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

Axes Mesh::shard_axes() const {
  return has_shards_ ? Axes{Axis::kDpShard, Axis::kCp} : Axes{Axis::kDpShard};
}

Axes Mesh::axes_of_same_values() const {
  return has_shards_ ? Axes{Axis::kDpReplicate} : Axes{Axis::kDpReplicate, Axis::kCp};
}

int Mesh::shards() const {
  int shards = 1;
  for (const Axis axis : shard_axes()) shards *= size(axis);
  return shards;
}

int Mesh::shard() const {
  int shard = 0;
  for (const Axis axis : shard_axes()) shard = shard * size(axis) + rank(axis);
  return shard;
}

int Mesh::dp_rank_of(int rank) const {
  return place_of(rank, Axis::kDpReplicate) * sizes_.dp_shard + place_of(rank, Axis::kDpShard);
}

bool Mesh::counts_loss_of(int rank) const {
  return place_of(rank, Axis::kPp) == sizes_.pp - 1 && place_of(rank, Axis::kCp) == 0 &&
         place_of(rank, Axis::kTp) == 0;
}

Mesh mesh_of(const config::Axes& axes, int rank) {
  MeshSizes sizes;
  for (const config::AxisRow& row : config::axis_rows())
    sizes.*size_along(row.axis) = static_cast<int>(axes.*row.ranks);
  return {sizes, rank, axes.has_shards()};
}

}  // namespace sftrun::parallel
