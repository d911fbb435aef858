#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "api.h"
#include "sftrun/hub/hub.h"

/// Reads the beginnings of a repository's files by HTTP ranges.
namespace sftrun::hub {

/// Writes files of their full size into `folder`, weights with their headers only: the rest is a
/// hole, which takes no room.   @param files relative to the repository, of `name` at `commit`
/// @return bytes received over the network
/// @throws as get_model_headers
uint64_t download_headers(const RepoName& name, const std::string& commit,
                          const std::vector<RemoteFile>& files, const std::filesystem::path& folder,
                          const HasHeader& has_header, const Settings& settings,
                          const Options& options);

}  // namespace sftrun::hub
