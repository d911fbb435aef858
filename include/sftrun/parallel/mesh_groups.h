#pragma once

#include <map>
#include <string>
#include <vector>

#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/group.h"
#include "sftrun/parallel/mesh.h"

namespace sftrun::parallel {

/// The groups of ranks along the axes of a mesh. Every rank of the run must ask for the same groups
/// in the same order; a group that was made before is used again.
class MeshGroups {
 public:
  /// @param comm must outlive it; its world size and rank are those of the mesh
  MeshGroups(Communicator& comm, const Mesh& mesh);

  Communicator& comm() const { return *comm_; }
  const Mesh& mesh() const { return mesh_; }
  /// This rank's group along `axes`: a group of one if their sizes are 1.
  Group along(const Axes& axes);
  /// Of this rank's group along `axis` the neighbours with which it makes a group of `count`.
  /// @pre count divides the size of the axis
  Group neighbours(Axis axis, int count);
  /// The same ranks as of `along`, whose calls are not ordered with those of other groups.
  /// @param purpose names it, new for each call
  Group own_along(const Axes& axes, const std::string& purpose);
  /// Of each group along `axis` its first and last rank; a group of one for ranks between them.
  Group ends_of(Axis axis, const std::string& purpose);

 private:
  using RankLists = std::vector<std::vector<int>>;
  Group made_once(RankLists groups, const std::string& name, const std::string& axes);
  Group make(const RankLists& groups, const std::string& name, const GroupOptions& options);
  /// "dp_shard", "pp+tp": the axes that have several ranks.
  std::string name_of(const Axes& axes) const;
  Communicator* comm_;
  Mesh mesh_;
  std::map<RankLists, Group> made_;
};

}  // namespace sftrun::parallel
