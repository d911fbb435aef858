#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/data_splits.h"

namespace sftrun::data {

/// The files of a data set, sorted by name: the file itself, what a pattern matches, or what a
/// folder holds. Of a folder, as `datasets` has it: those of a subset, where its README.md declares
/// some (core/dataset_card.h), and of a split, where that, or folders or file names say so
/// (train-00000-of-00002.parquet, data/validation/…), and what `save_to_disk` wrote.
/// A file's name is what tells its split, also where it is a link.
/// @param role the split to use if source.split is empty
/// @throws DataError with the existing names, for an unknown split or subset, or if there are none
std::vector<std::filesystem::path> source_files(const config::DataSource& source, SplitRole role);
/// For messages, after the name of a data set of several subsets: ", subset `en` of 3"; else empty.
std::string subset_of(const config::DataSource& source);
/// A path for messages; in the hub's cache as "owner/name (commit 638a318): train.jsonl".
std::string shown_name(const std::string& path);

}  // namespace sftrun::data
