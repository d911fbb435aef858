#pragma once

#include <string>

#include "sftrun/launch/status.h"

namespace sftrun::launch {

/// The progress line, in at most `columns` columns. The least important parts are left out first:
///     training [=====>      ] 17/200  loss 1.8342  48.2k tok/s  12.30 GiB  3m 20s left
std::string progress_line(const Status& status, int columns);

}  // namespace sftrun::launch
