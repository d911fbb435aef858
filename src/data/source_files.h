#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"

namespace sftrun::data {

enum class SplitRole { kTrain, kValidation };

/// The files of a data set, sorted by name: the file itself, what a pattern matches, or what a
/// folder holds. Of a folder, as `datasets` has it: those of a split, where folders or file names
/// say so (train-00000-of-00002.parquet, data/validation/…), and what `save_to_disk` wrote.
/// @param role which split is meant where source.split does not say
/// @throws DataError naming what there is
std::vector<std::filesystem::path> source_files(const config::DataSource& source, SplitRole role);

}  // namespace sftrun::data
