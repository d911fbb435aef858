#pragma once

#include <string>
#include <vector>

#include "api.h"
#include "cache.h"
#include "sftrun/hub/hub.h"

namespace sftrun::hub {

/// The files to download.
struct SnapshotTask {
  RepoName name;
  std::string commit;
  std::vector<RemoteFile> files;
};

/// Downloads the files into the snapshot, several at a time; files that are there are skipped.
/// Weights are downloaded after all other files.
/// @return bytes received over the network
/// @throws DeviceError before the download begins if the disk has too little space; and as
/// get_model
uint64_t download_snapshot(const SnapshotTask& task, const RepoCache& cache,
                           const Settings& settings, const Options& options);

}  // namespace sftrun::hub
