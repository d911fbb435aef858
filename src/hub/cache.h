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
///       refs/main                       commit of the revision, as last reported by the hub
///       blobs/<etag>                    contents
///       snapshots/<commit>/config.json  -> ../../blobs/<etag>
///     .locks/models--owner--name/<etag>.lock
/// https://huggingface.co/docs/huggingface_hub/guides/manage-cache
namespace sftrun::hub {

/// The folder of one repository in the cache. Computes paths only, unless noted otherwise.
class RepoCache {
 public:
  RepoCache(std::filesystem::path cache_dir, const RepoName& name);

  std::filesystem::path blob(const std::string& etag) const;
  /// A partially downloaded blob: <etag>.incomplete, at whose end the next download resumes.
  std::filesystem::path incomplete(const std::string& etag) const;
  std::filesystem::path snapshot(const std::string& commit) const;
  std::filesystem::path pointer(const std::string& commit, const std::string& path) const;
  std::filesystem::path lock(const std::string& etag) const;

  /// Reads refs/<revision>; for a commit returns the commit. nullopt: unknown revision.
  std::optional<std::string> commit_of(const std::string& revision) const;
  /// Writes refs/<revision>, unless it has that content already or the revision is the commit.
  void write_ref(const std::string& revision, const std::string& commit) const;

  /// Makes snapshots/<commit>/<path> a link to the blob, with a rename. @throws DeviceError
  void link(const std::string& commit, const std::string& path, const std::string& etag) const;
  /// Creates the folders that a download writes to, and CACHEDIR.TAG, so that backups skip the
  /// cache.
  /// @throws ConfigError naming the folder that cannot be created
  void make_folders(const std::string& commit) const;

  /// The files of a snapshot that are in the cache, with their sizes.
  std::vector<RemoteFile> local_files(const std::string& commit) const;
  /// The complete list of a commit's files, if one was saved: by huggingface_hub
  /// (trees/<commit>.json) or by `note_files`.
  std::optional<std::vector<RemoteFile>> noted_files(const std::string& commit) const;
  /// Saves the list for this program only (sftrun-trees/<commit>.json). In huggingface_hub's own
  /// file it would mean that all the files are in the cache.
  void note_files(const std::string& commit, const std::vector<RemoteFile>& files) const;

 private:
  std::filesystem::path cache_dir_, folder_;
};

/// Whether `path` is, or links to, a regular file of that size.
bool is_file_of(const std::filesystem::path& path, uint64_t size);

}  // namespace sftrun::hub
