#pragma once

#include "sftrun/data/arrow_table.h"

namespace sftrun::data {

/// Loads libsftrun_arrow.so, which lies beside the engine. @throws DataError if it is not there
const ArrowTable& arrow_library();

}  // namespace sftrun::data
