#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/hub/settings.h"

/// Uploads files to a model repository on a hub, as one commit.
///
/// The protocol is that of huggingface_hub: the repository is created if it does not exist, the hub
/// says which files it keeps in git and which in LFS, LFS objects go to the storage that it names,
/// and a commit makes all files visible together. What the hub has already is not sent again, so a
/// repeated upload resumes an interrupted one.
namespace sftrun::hub {

/// One file to upload.
struct LocalFile {
  std::string path;              ///< in the repository; relative, without ".."
  std::filesystem::path source;  ///< where the bytes are, unless `content` is set
  std::optional<std::string> content = {};
  bool only_if_new = false;  ///< a file of this name in the repository is kept

  /// @throws DataError if it cannot be read
  uint64_t size() const;
};

struct UploadRequest {
  std::string repo;         ///< "owner/name"
  std::string branch;       ///< created if it does not exist; empty: main
  bool is_private = false;  ///< a public repository of this name is refused
  std::string message;      ///< of the commit; its first line is the title
  std::vector<LocalFile> files = {};
  bool quiet = false;  ///< no progress
  /// Called often, from several threads; the upload stops soon after it returns true. Empty: never.
  std::function<bool()> should_stop = {};
};

/// What became of a file.
enum class FileFate : uint8_t {
  kSent,       ///< its bytes were sent
  kUnchanged,  ///< the repository has the same file
  kStored,     ///< the hub had the bytes (LFS), and the commit names them
  kKept,       ///< `only_if_new`, and the repository has one
  kIgnored,    ///< by the repository's .gitignore
};

struct UploadedFile {
  std::string path;
  uint64_t size = 0;
  bool is_lfs = false;
  FileFate fate = FileFate::kSent;
};

struct UploadResult {
  std::string repo, branch;
  std::string commit;  ///< the new commit, or the branch's commit if nothing had changed
  std::string url;     ///< the repository's page
  bool is_new = false, has_changed = false;
  std::vector<UploadedFile> files;  ///< in the order of the request
  uint64_t sent_bytes = 0;          ///< of files, over the network
};

/// "sent", "unchanged", …, for users
const char* word_of(FileFate fate);

/// The user or organization that a token belongs to.
/// @throws ConfigError without a token; DataError if the hub does not accept it; CommError
std::string user_of_token(const Settings& settings, const std::function<bool()>& should_stop = {});

/// @throws ConfigError  no token, offline, or the hub refuses the name
/// @throws DataError  the token may not write, a public repository, a file that cannot be read
/// @throws CommError  the hub or its storage cannot be reached, or answers nonsense
/// @throws Error (130)  stopped by `should_stop`
UploadResult upload(const UploadRequest& request, const Settings& settings);

}  // namespace sftrun::hub
