#pragma once

#include <string>
#include <vector>

#include "api.h"
#include "cache.h"
#include "sftrun/hub/hub.h"

namespace sftrun::hub {

/// What is fetched, and into where.
struct SnapshotTask {
  RepoName name;
  std::string commit;
  std::vector<RemoteFile> files;
};

/// Brings the files into the snapshot, several at a time; what is there already is left alone.
/// Weights come when all else is there.
/// @return bytes that came over the network
/// @throws DeviceError before it begins if the disk has too little space; and as get_model
uint64_t download_snapshot(const SnapshotTask& task, const RepoCache& cache,
                           const Settings& settings, const Options& options);

}  // namespace sftrun::hub
