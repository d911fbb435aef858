#pragma once

#include <functional>
#include <optional>
#include <string>

#include "sftrun/parallel/communicator.h"

/// Whether what must be the same on all ranks is.
namespace sftrun::parallel {

struct Disagreement {
  int rank = 0;      ///< the lowest that differs from rank 0
  std::string what;  ///< how, in that rank's words; up to some 500 bytes
};

/// A collective: every rank gets the same answer, so that all can end with the same message.
/// @param name of the comparison, new for each call   @param value of this rank
/// @param describe how this rank's value differs from that of rank 0, which it gets; not empty
/// @return nullopt: all ranks have the value of rank 0
std::optional<Disagreement> find_disagreement(
    Communicator& comm, const std::string& name, const std::string& value,
    const std::function<std::string(const std::string& of_rank_0)>& describe);

}  // namespace sftrun::parallel
