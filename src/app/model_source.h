#pragma once

#include <filesystem>
#include <string>

#include "sftrun/core/error.h"
#include "sftrun/hub/hub.h"

/// Models that flags and keys name: files here, or a hub's, brought here.
namespace sftrun::app {

struct ModelAsked {
  std::string name;           ///< a path, or a name on the hub; a path that exists wins
  std::string revision = {};  ///< model.revision; empty: none
  std::string where;          ///< the flag or the key's place, for messages
  hub::ModelParts parts = hub::ModelParts::kAll;
  bool quiet = false;  ///< neither progress nor a word on what was found
};

struct ModelSource {
  std::filesystem::path path;  ///< what a loader opens: a directory or a .gguf file
  /// How others find the model: "owner/name" and its revision; else the name as it was given.
  std::string name, revision;
};

/// Looks in the file system (of a run's directory, its `model`; of a directory with one .gguf file
/// and no config.json, that file), in the cache, and asks the hub.
/// Ctrl-C ends a download; the next goes on from there.
/// @throws ConfigError, DataError, CommError, DeviceError naming `where`; Error (130, 75) stopped
ModelSource find_model(const ModelAsked& asked);
/// The same for one that the launcher has found at `path`: nothing is looked for.
ModelSource found_model(const ModelAsked& asked, const std::filesystem::path& path);

/// The directory of an adapter that is named by itself, by its run's directory (the result, else
/// the newest checkpoint), or as on the hub. A path that is none of these stays.   @throws as
/// find_model
std::filesystem::path find_adapter(const ModelAsked& asked);

/// Whether `text`, which reads as `name` on the hub, is a path all the same: its first part is a
/// directory here, and the cache has nothing of that name.
bool is_path_here(const std::string& text, const hub::RepoName& name);

/// The hub's error about a name that may have been meant as a path: says both.
/// @param place the flag or key that the name is from
[[noreturn]] void rethrow_as_unknown_path(const Error& error, const std::string& path,
                                          const std::string& place);
/// The fix for a path that does not exist: "did you mean …?" or to check it, and `other`.
std::string fix_for_path(const std::string& path, const std::string& other);
/// What lies beside where `path` should be and has a name like its; empty: nothing.
std::string near_path(const std::filesystem::path& path);

/// Runs `download` with an answer to Ctrl-C and SIGTERM: the exit code is the signal's.
hub::Snapshot until_stopped(
    const std::function<hub::Snapshot(const std::function<bool()>& should_stop)>& download);

}  // namespace sftrun::app
