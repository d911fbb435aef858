#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "sftrun/parallel/communicator.h"

namespace sftrun::engine {

/// What the ranks say after work that may have failed, or been stopped, on some of them.
struct FromAllRanks {
  int exit_code = 0;  ///< the largest of all ranks; 0: all have done the work
  std::vector<nlohmann::ordered_json> messages;  ///< by rank; empty unless all have done it
};
/// All ranks call it.
/// @param exit_code of this rank; 0: it has done the work   @param own message to all ranks
FromAllRanks from_all_ranks(parallel::Communicator& comm, int exit_code,
                            nlohmann::ordered_json own = nullptr);

}  // namespace sftrun::engine
