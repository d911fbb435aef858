#include "sftrun/parallel/mesh_groups.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/error.h"

namespace sftrun::parallel {

MeshGroups::MeshGroups(Communicator& comm, const Mesh& mesh) : comm_(&comm), mesh_(mesh) {
  SFTRUN_CHECK_EQ(comm.world_size(), mesh.world_size());
  SFTRUN_CHECK_EQ(comm.rank(), mesh.rank());
}

std::string MeshGroups::name_of(const Axes& axes) const {
  std::string name;
  for (const Axis axis : axes)
    if (mesh_.size(axis) > 1)
      name += std::string(name.empty() ? "" : "+") + config::row_of(axis).name;
  return name;
}

Group MeshGroups::make(const RankLists& groups, const std::string& name,
                       const GroupOptions& options) {
  Group own;
  for (size_t number = 0; number < groups.size(); ++number) {
    const Group group =
        comm_->make_group(groups[number], fmt::format("{}-{}", name, number), options);
    if (std::find(groups[number].begin(), groups[number].end(), mesh_.rank()) !=
        groups[number].end())
      own = group;
  }
  return own;
}

Group MeshGroups::made_once(RankLists groups, const std::string& name, const std::string& axes) {
  const auto found = made_.find(groups);
  if (found != made_.end()) return found->second;
  const Group own = make(groups, name, {.axes = axes});
  return made_.emplace(std::move(groups), own).first->second;
}

Group MeshGroups::along(const Axes& axes) {
  return made_once(mesh_.groups_along(axes), name_of(axes), name_of(axes));
}

Group MeshGroups::neighbours(Axis axis, int count) {
  SFTRUN_CHECK(mesh_.size(axis) % count == 0);
  RankLists groups;
  for (const std::vector<int>& ranks : mesh_.groups_along({axis}))
    for (auto first = ranks.begin(); first != ranks.end(); first += count)
      groups.emplace_back(first, first + count);
  const std::string name = name_of({axis});
  return made_once(std::move(groups), fmt::format("{}-neighbours-{}", name, count), name);
}

Group MeshGroups::own_along(const Axes& axes, const std::string& purpose) {
  return make(mesh_.groups_along(axes), purpose, {.axes = name_of(axes), .is_own = true});
}

Group MeshGroups::ends_of(Axis axis, const std::string& purpose) {
  RankLists ends;
  for (const std::vector<int>& ranks : mesh_.groups_along({axis}))
    ends.push_back({ranks.front(), ranks.back()});
  return make(ends, purpose, {.axes = name_of({axis}), .is_own = true});
}

}  // namespace sftrun::parallel
