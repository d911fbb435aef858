#pragma once

#include <filesystem>
#include <string>
#include <vector>

/// Splits of a data set by the names of its files and folders, for folders here and on a hub alike:
/// https://huggingface.co/docs/hub/datasets-file-names-and-splits
namespace sftrun {

enum class SplitRole { kTrain, kValidation };

/// Which split is meant where none is named: those after the first where it is not there.
std::vector<std::string> default_splits(SplitRole role);

/// What of a data set's files is meant.
struct SplitFiles {
  std::vector<std::filesystem::path> files;  ///< in their order; empty: there is no such split
  std::vector<std::string> names;            ///< the splits that names tell, sorted
  std::string missing;  ///< the split that was looked for, where it is not there
};

/// @param files below the data set's folder. Their names count, not what they may be links to: in
/// huggingface_hub's cache those are named by checksums
/// @param asked a split's name; "val" finds validation-00000-of-00001.parquet. Files that tell no
/// split are to train on. Empty: the first of `defaults` that is there
/// @param defaults empty, as names that tell no split: all files
SplitFiles files_of_split(const std::vector<std::filesystem::path>& files, const std::string& asked,
                          const std::vector<std::string>& defaults);

/// Whether a split of this name is what `asked` means: "train_sft" for "train", "dev" for
/// "validation".
bool means_split(const std::string& name, const std::string& asked);
/// Whether a name says which split it is.
bool tells_split(const std::string& name);

/// What to write instead of `datasets`' slices and sums: "train[:10]", "train+test"; empty for
/// plain names.
std::string advice_on_split(const std::string& asked);

}  // namespace sftrun
