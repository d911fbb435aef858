#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

/// The README.md of a data set, whose YAML head may declare subsets (`configs`), for folders here
/// and on a hub alike. What is read is what Hugging Face's `datasets` reads:
/// https://huggingface.co/docs/hub/datasets-manual-configuration
namespace sftrun {

inline constexpr const char* kDatasetCard = "README.md";

/// One of `configs`.
struct Subset {
  struct Split {
    std::string name;
    std::vector<std::string> patterns;  ///< of `data_files`, below `folder`
  };
  std::string name;
  bool is_default = false;
  std::string folder;  ///< `data_dir`, below the data set's; empty: that itself
  /// Empty: files' names tell the splits, as of data sets without a card.
  std::vector<Split> splits;
};

struct DatasetCard {
  std::vector<Subset> subsets;
  std::string described;  ///< the one subset that `dataset_info` is about; empty: none, or several
};

/// @param where the file, for errors
/// @throws DataError if the head declares subsets and `datasets` would not take it
DatasetCard parse_dataset_card(const std::string& text, const std::string& where);

/// Which records of a data set are meant.
struct SubsetRequest {
  std::string name;   ///< of the subset; empty: the default one
  std::string split;  ///< empty: the first of `defaults` that is there; with none: every split
  std::vector<std::string> defaults;
};

struct SubsetFiles {
  std::string subset;  ///< the one that was chosen
  /// In the order in which `datasets` reads them; one that several patterns name is there as often.
  std::vector<std::filesystem::path> files;
  /// Set: nothing can be chosen. The message goes on after the data set's name: "has no subset …".
  std::string message, fix;
};

/// The subset that is meant, without its files.
SubsetFiles choose_subset(const DatasetCard& card, const std::string& name);

/// @param files all that the data set holds, below its folder
/// @param is_data which of them patterns without an extension of their own may mean
SubsetFiles files_of_subset(const DatasetCard& card,
                            const std::vector<std::filesystem::path>& files,
                            const SubsetRequest& request,
                            const std::function<bool(const std::filesystem::path&)>& is_data);

/// Whether a name is that of a file which only describes a data set ("dataset_info.json").
bool describes_data(const std::string& file_name);

}  // namespace sftrun
