#pragma once

#include <fmt/format.h>

#include <string>

#include "sftrun/parallel/communicator.h"

namespace sftrun::parallel {

/// Makes all groups of one axis of the mesh, as every rank of a run must, and returns this rank's.
/// @param own number of this rank's group   @param ranks_of the ranks of a group, by its number
/// @param is_own see `Communicator::make_group`
template <typename RanksOf>
Group make_own_group(Communicator& comm, const std::string& name, int num_groups, int own,
                     RanksOf&& ranks_of, bool is_own = false) {
  Group result;
  for (int number = 0; number < num_groups; ++number) {
    const Group group =
        comm.make_group(ranks_of(number), fmt::format("{}-{}", name, number), is_own);
    if (number == own) result = group;
  }
  return result;
}

}  // namespace sftrun::parallel
