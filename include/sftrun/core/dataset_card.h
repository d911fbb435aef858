#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

/// Parses the README.md of a data set, whose YAML header may declare subsets (`configs`), for local
/// folders and for a hub. Reads what Hugging Face's `datasets` reads:
/// https://huggingface.co/docs/hub/datasets-manual-configuration
namespace sftrun {

inline constexpr const char* kDatasetCard = "README.md";

/// One entry of `configs`.
struct Subset {
  struct Split {
    std::string name;
    std::vector<std::string> patterns;  ///< of `data_files`, relative to `folder`
  };
  std::string name;
  bool is_default = false;
  std::string folder;  ///< `data_dir`, relative to the data set's folder; empty: that folder
  /// Empty: the names of the files tell the splits, as without a card.
  std::vector<Split> splits;
};

struct DatasetCard {
  std::vector<Subset> subsets;
  std::string described;  ///< the only subset in `dataset_info`; empty: none, or several
};

/// @param where the file's path, for errors
/// @throws DataError if the header declares subsets in a form that `datasets` rejects
DatasetCard parse_dataset_card(const std::string& text, const std::string& where);

/// Selects records of a data set.
struct SubsetRequest {
  std::string name;   ///< name of the subset; empty: the default subset
  std::string split;  ///< empty: the first of `defaults` that exists; without defaults all splits
  std::vector<std::string> defaults;
};

struct SubsetFiles {
  std::string subset;  ///< name of the selected subset
  /// In the order in which `datasets` reads them; a file that several patterns match appears
  /// several times.
  std::vector<std::filesystem::path> files;
  /// Set if nothing can be selected. `message` continues a sentence after the data set's name: "has
  /// no subset …".
  std::string message, fix;
};

/// Selects the subset, without its files.
SubsetFiles choose_subset(const DatasetCard& card, const std::string& name);

/// @param files all files of the data set, relative to its folder
/// @param is_data which of them a pattern without a file extension may match
SubsetFiles files_of_subset(const DatasetCard& card,
                            const std::vector<std::filesystem::path>& files,
                            const SubsetRequest& request,
                            const std::function<bool(const std::filesystem::path&)>& is_data);

/// Whether a file of this name only describes the data set ("dataset_info.json").
bool describes_data(const std::string& file_name);

}  // namespace sftrun
