#pragma once

#include <filesystem>
#include <string>
#include <vector>

/// Determines the splits of a data set from the names of its files and folders, for local folders
/// and for a hub: https://huggingface.co/docs/hub/datasets-file-names-and-splits
namespace sftrun {

enum class SplitRole { kTrain, kValidation };

/// The splits to try, in order, if none is named.
std::vector<std::string> default_splits(SplitRole role);

/// The files of a split.
struct SplitFiles {
  /// In the order of `files`; empty: there is no such split
  std::vector<std::filesystem::path> files;
  std::vector<std::string> names;  ///< the splits found in the names, sorted
  std::string missing;             ///< the requested split, if it was not found
  /// Shards of several splits whose names have the word, and none of it alone: train_prefs, train_sft
  std::vector<std::string> alike;
};

/// @param files paths relative to the data set's folder. Only their names are used, not the targets
/// of links, which in huggingface_hub's cache are named by checksums.
/// @param asked a split's name; "val" finds validation-00000-of-00001.parquet. If no name tells a
/// split, all files are the training split. Empty: the first of `defaults` that exists.
/// A split with another name (train_sft-00000-of-00001.parquet) is found by its word if it is the only one.
/// @param defaults empty, or if no name tells a split: all files
SplitFiles files_of_split(const std::vector<std::filesystem::path>& files, const std::string& asked,
                          const std::vector<std::string>& defaults);

/// Whether a split name matches `asked`: "train_sft" for "train", "dev" for "validation".
bool means_split(const std::string& name, const std::string& asked);
/// Whether a name tells which split it is.
bool names_split(const std::string& name);

/// Advice for the slices and sums of `datasets`, "train[:10]" or "train+test", which are not
/// supported; empty for plain names.
std::string advice_on_split(const std::string& asked);

}  // namespace sftrun
