#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "sftrun/core/error.h"
#include "sftrun/hub/hub.h"
#include "temporary_folder.h"

/// Finds the models that flags and keys name: local files, or repositories on a hub, which are
/// downloaded.
namespace sftrun::app {

/// What a path is to lead to.
enum class PathKind : uint8_t { kModel, kAdapter, kData };

/// How a command takes an adapter: by --adapter, by a setting of the run, or not at all.
enum class AdapterWay : uint8_t { kNone, kFlag, kSetting };

struct ModelAsked {
  std::string name;           ///< a path, or a name on the hub; an existing path comes first
  std::string revision = {};  ///< model.revision; empty: none
  std::string where;          ///< the flag or the key's place, for messages
  hub::ModelParts parts = hub::ModelParts::kAll;
  bool quiet = false;  ///< no progress and no log lines
  /// Of a model on a hub that is not in the cache, read the configuration and the headers of weights
  /// only, into a temporary folder.
  bool headers_only = false;
  /// Where an adapter is asked for: what names a model instead, with the space or = behind it.
  std::string names_model = "--model ";
  PathKind kind = PathKind::kModel;
  AdapterWay adapter_way = AdapterWay::kNone;  ///< for advice, where an adapter is given instead
};

struct ModelSource {
  std::filesystem::path path;  ///< the path to open: a directory or a .gguf file
  /// The model's name for other programs: "owner/name" and its revision; else the name as given.
  std::string name, revision;
  std::shared_ptr<const TemporaryFolder> folder = {};  ///< of `headers_only`; null: none
};

/// Searches the file system, then the cache, then the hub. For a run directory it finds `model` in
/// it; for a directory with one .gguf file and no config.json, that file.
/// Ctrl-C stops a download; the next call resumes it.
/// @throws ConfigError, DataError, CommError, DeviceError naming `where`; Error (130, 75) stopped
ModelSource find_model(const ModelAsked& asked);
/// The same for a model that the launcher has found at `path`.
ModelSource found_model(const ModelAsked& asked, const std::filesystem::path& path);

/// The directory of an adapter. It may be named by its directory, by its run directory (the result,
/// else the newest checkpoint) or by its name on the hub. Other paths are returned unchanged.
/// @throws as find_model
std::filesystem::path find_adapter(const ModelAsked& asked);

/// @throws DataError if `asked` names a run directory that has neither a result nor a checkpoint yet
void require_saved_run(const ModelAsked& asked);

/// Whether `text`, which has the form of `name` on the hub, is meant as a path: its first part is a
/// local directory, and the cache has no repository of that name.
bool is_path_here(const std::string& text, const hub::RepoName& name);

/// Extends the hub's error for a name that may have been meant as a path.
/// @param place the flag or key that the name is from
[[noreturn]] void rethrow_as_unknown_path(const Error& error, const std::string& path,
                                          const std::string& place, PathKind kind);
/// The fix for a path that does not exist: "did you mean …?" or to check it, and `other`.
std::string fix_for_path(const std::string& path, const std::string& other, PathKind kind);
/// A file or directory of this kind with a similar name in the directory of `path`; empty: none.
std::string near_path(const std::filesystem::path& path, PathKind kind);

/// Runs `download`. Ctrl-C and SIGTERM stop it with the signal's exit code.
hub::Snapshot until_stopped(
    const std::function<hub::Snapshot(const std::function<bool()>& should_stop)>& download);

}  // namespace sftrun::app
