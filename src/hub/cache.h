#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api.h"
#include "sftrun/hub/repo_name.h"

/// huggingface_hub's cache:
///     models--owner--name/
///       refs/main                       the commit that the revision was when last asked
///       blobs/<etag>                    contents
///       snapshots/<commit>/config.json  -> ../../blobs/<etag>
///     .locks/models--owner--name/<etag>.lock
/// https://huggingface.co/docs/huggingface_hub/guides/manage-cache
namespace sftrun::hub {

/// One repository's place in it. Paths only, but for what says otherwise.
class RepoCache {
 public:
  RepoCache(std::filesystem::path cache_dir, const RepoName& name);

  std::filesystem::path blob(const std::string& etag) const;
  /// What has come of a blob so far: <etag>.incomplete, where the next download goes on.
  std::filesystem::path incomplete(const std::string& etag) const;
  std::filesystem::path snapshot(const std::string& commit) const;
  std::filesystem::path pointer(const std::string& commit, const std::string& path) const;
  std::filesystem::path lock(const std::string& etag) const;

  /// Reads refs/<revision>; a commit is its own. nullopt: not known here.
  std::optional<std::string> commit_of(const std::string& revision) const;
  /// Writes refs/<revision>, unless it says so already or the revision is the commit.
  void write_ref(const std::string& revision, const std::string& commit) const;

  /// Makes snapshots/<commit>/<path> point to the blob, by a rename. @throws DeviceError
  void link(const std::string& commit, const std::string& path, const std::string& etag) const;
  /// The folders that a download writes to, and the mark by which backups leave a cache out.
  /// @throws ConfigError naming the folder that cannot be made
  void make_folders(const std::string& commit) const;

  /// The files in a snapshot that are there, with their sizes.
  std::vector<RemoteFile> local_files(const std::string& commit) const;
  /// All of a commit's files, if anybody noted them when they were listed: huggingface_hub
  /// (trees/<commit>.json) or `note_files`.
  std::optional<std::vector<RemoteFile>> noted_files(const std::string& commit) const;
  /// Notes them for this program alone (sftrun-trees/<commit>.json): huggingface_hub would take
  /// its own note for a promise that all of them are here.
  void note_files(const std::string& commit, const std::vector<RemoteFile>& files) const;

 private:
  std::filesystem::path cache_dir_, folder_;
};

/// Whether `path` leads to a regular file of that size.
bool is_file_of(const std::filesystem::path& path, uint64_t size);

}  // namespace sftrun::hub
