#include "token_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "media_stamps.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/errno_fix.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file_hash.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/log.h"
#include "sftrun/core/open_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/units.h"

namespace sftrun::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFile = "examples";

/// A lock: one process writes, the others wait.
class FolderLock {
 public:
  FolderLock(const fs::path& folder, const std::string& name) {
    const OpenedFile lock = open_file(folder / "lock", O_RDWR | O_CREAT);
    if (lock.fd < 0)
      throw DeviceError("cannot create a lock file: " + lock.reason, (folder / "lock").string(),
                        lock.fix);
    fd_ = lock.fd;
    bool said = false;
    while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      // Some network file systems have no locks; then several processes may write, each to its own
      // file.
      if (errno != EWOULDBLOCK && errno != EINTR) return;
      if (!said) log::info("data: another process is tokenizing {}; waiting for it", name);
      said = true;
      interruption_point();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  ~FolderLock() { ::close(fd_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

/// A valid file may belong to another data set, if it was moved here.
void require_key(const ExampleStore& store, const fs::path& file, const std::string& key) {
  if (store.header().value("key", nlohmann::ordered_json()) != key)
    throw DataError("the tokenized examples belong to another data set or configuration",
                    file.string());
}

/// @param warns warn about a damaged file, or changed images; only the process with the lock does
std::optional<ExampleStore> opened(const fs::path& file, const std::string& key, int num_threads,
                                   bool warns) {
  if (!leads_to_file(file)) return std::nullopt;
  try {
    ExampleStore store = ExampleStore::open(file, num_threads);
    require_key(store, file, key);
    const auto change = find_media_change(store.attachment());
    if (!change) return store;
    if (warns) log::warn("data: {}; tokenizing again", *change);
    return std::nullopt;
  } catch (const DataError& error) {
    if (warns) log::warn("data: {}: {}; tokenizing again", file.string(), error.message());
    return std::nullopt;
  }
}

/// A file that is deleted when it is no longer mapped.
ExampleStore unkept(const std::function<void(const fs::path&)>& write) {
  std::string folder = (folder_for_temporaries() / "sftrun-data-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr)
    throw DeviceError("cannot create a temporary folder", folder, "set TMPDIR, or data.cache_dir");
  struct Remover {
    fs::path path;
    ~Remover() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  } const remover{folder};
  write(remover.path / kFile);
  return ExampleStore::open(remover.path / kFile);
}

}  // namespace

TokenCache::TokenCache(const std::string& configured, int num_threads) : num_threads_(num_threads) {
  if (configured == "none") return;
  folder_ = configured;
  if (configured.empty() && !user_cache().empty()) folder_ = user_cache() / "data";
  if (folder_.empty()) return;
  std::error_code code;
  fs::create_directories(folder_ / "hashes", code);
  if (!code && ::access((folder_ / "hashes").c_str(), W_OK) == 0) return;
  log::warn("data: {} cannot be written, so tokenized data are not cached (data.cache_dir)",
            folder_.string());
  folder_.clear();
}

fs::path TokenCache::hashes() const {
  return folder_.empty() ? fs::path() : folder_ / "hashes";
}

ExampleStore TokenCache::get(const std::string& key, const std::string& name,
                             const std::function<void(const fs::path&)>& write) const {
  try {
    if (folder_.empty()) return unkept(write);
    const fs::path folder = folder_ / key;
    make_directories(folder);
    if (auto store = opened(folder / kFile, key, num_threads_, /*warns=*/false)) {
      log::info("data: {} is tokenized already: {}", name, folder.string());
      return std::move(*store);
    }
    const FolderLock lock(folder, name);
    if (auto store = opened(folder / kFile, key, num_threads_, /*warns=*/true))
      return std::move(*store);
    remove_temporaries(folder);
    write(folder / kFile);
    std::error_code ignored;
    log::info("tokenized data cached in {} ({})", folder.string(),
              format_bytes(fs::file_size(folder / kFile, ignored)));
    return ExampleStore::open(folder / kFile, num_threads_);
  } catch (const DeviceError& error) {
    // Only a full disk is a reason to name another one.
    const bool is_full = error.fix().empty() || error.fix() == fix_for_write(ENOSPC);
    throw DeviceError(
        "tokenized data: " + error.message(), error.where(),
        is_full ? "free disk space, or set data.cache_dir to another disk" : error.fix());
  }
}

}  // namespace sftrun::data
