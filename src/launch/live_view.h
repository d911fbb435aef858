#pragma once

#include <string>
#include <vector>

#include "console.h"
#include "sftrun/launch/status.h"

namespace sftrun::launch {

/// The status of a worker of this machine.
struct RankStatus {
  int rank = 0;
  Status status;
};

/// The live view of a run: the progress of rank 0, and with several workers memory and utilisation of
/// each. What does not fit into the terminal's size is left out, the least important first:
///     training [=====>      ] 17/200  loss 1.8342  3m 20s left  48.2k tok/s
///     rank 0  12.30 GiB  GPU  98%   rank 1  12.30 GiB  GPU  97%
/// @param ranks of this machine, ascending; the first is the one whose progress is shown
std::vector<std::string> live_view(const std::vector<RankStatus>& ranks, TerminalSize size);

}  // namespace sftrun::launch
