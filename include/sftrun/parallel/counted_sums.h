#pragma once

#include <vector>

#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/mesh.h"

namespace sftrun::parallel {

/// Sums over the ranks whose losses count (Mesh::counts_loss_of). All ranks call it.
/// @param own [n] of this rank, with the same n on every rank   @return [n], the same on every rank
std::vector<double> counted_sums(Communicator& comm, const Mesh& mesh,
                                 const std::vector<double>& own);

}  // namespace sftrun::parallel
