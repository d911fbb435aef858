#pragma once

#include "sftrun/data/arrow_table.h"

namespace sftrun::data {

/// Loads libsftrun_arrow.so, which is beside the engine. @throws DataError if it does not exist
const ArrowTable& arrow_library();

}  // namespace sftrun::data
