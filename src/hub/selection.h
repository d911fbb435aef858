#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api.h"
#include "sftrun/core/dataset_card.h"
#include "sftrun/hub/hub.h"

/// Which of a repository's files are fetched. Pure.
namespace sftrun::hub {

/// Why nothing can be chosen, and what to do about it.
struct NoChoice {
  std::string message, fix;
};

struct Selection {
  std::vector<RemoteFile> files;  ///< small ones first: weights are there last, so that a snapshot
                                  ///< with weights is whole
  std::string opened;             ///< what a loader opens, below the snapshot; empty: all of it
  std::optional<NoChoice> none;   ///< set: there are no files
};

Selection select_model(const RepoName& name, const std::vector<RemoteFile>& files,
                       ModelParts parts);
/// The README.md of a data set, by which its files are chosen; nullopt: it has none, or `name` is a
/// file's or a pattern.
std::optional<RemoteFile> dataset_card(const RepoName& name, const std::vector<RemoteFile>& files);
/// @param card of that README.md; empty where there is none
Selection select_dataset(const RepoName& name, const std::vector<RemoteFile>& files,
                         const DatasetRequest& request, const DatasetCard& card);

/// Whether a file holds weights, of which the small ones come before.
bool is_weights(const std::string& path);
/// i and n of model-00001-of-00004.safetensors; nullopt: no such name.
struct Shard {
  int number = 0, count = 0;
};
std::optional<Shard> shard_of(const std::string& path);

}  // namespace sftrun::hub
