#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api.h"
#include "sftrun/core/dataset_card.h"
#include "sftrun/hub/hub.h"

/// Selects the files of a repository to download. Pure functions.
namespace sftrun::hub {

/// Why nothing can be selected, and how to fix it.
struct NoChoice {
  std::string message, fix;
};

struct Selection {
  /// Small files first and weights last: a snapshot that contains the weights is complete
  std::vector<RemoteFile> files;
  /// The path that a loader opens, relative to the snapshot; empty: the snapshot
  std::string opened;
  std::optional<NoChoice> none;  ///< set: no files were selected
};

Selection select_model(const RepoName& name, const std::vector<RemoteFile>& files,
                       ModelParts parts);
/// The README.md of a data set, which is needed to select its files; nullopt: there is none, or
/// `name` is that of a file or a pattern.
std::optional<RemoteFile> dataset_card(const RepoName& name, const std::vector<RemoteFile>& files);
/// @param card from that README.md; empty if there is none
Selection select_dataset(const RepoName& name, const std::vector<RemoteFile>& files,
                         const DatasetRequest& request, const DatasetCard& card);

/// Whether a file contains weights, which are downloaded last.
bool is_weights(const std::string& path);
/// i and n of model-00001-of-00004.safetensors; nullopt for other names.
struct Shard {
  int number = 0, count = 0;
};
std::optional<Shard> shard_of(const std::string& path);

}  // namespace sftrun::hub
