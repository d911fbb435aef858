#include "snapshot_download.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "blob_download.h"
#include "file_lock.h"
#include "progress.h"
#include "selection.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/units.h"

namespace sftrun::hub {
namespace fs = std::filesystem;
namespace {

constexpr size_t kParallelFiles = 8;  // huggingface_hub's default

uint64_t saturating_add(uint64_t a, uint64_t b) {
  return b > UINT64_MAX - a ? UINT64_MAX : a + b;
}

class SnapshotDownload {
 public:
  SnapshotDownload(const SnapshotTask& task, const RepoCache& cache, const Settings& settings,
                   const Options& options)
      : task_(task), cache_(cache), settings_(settings), options_(options) {}

  uint64_t run() {
    cache_.make_folders(task_.commit);
    require_space();
    const uint64_t total = total_bytes();
    if (!options_.quiet && is_all_there()) {
      log::info("{}: commit {} is already in the cache", task_.name.text(),
                task_.commit.substr(0, 7));
    } else if (!options_.quiet) {
      log::info("downloading {}: {}, {} (commit {})", task_.name.text(),
                counted(task_.files.size(), "file"), format_bytes(total),
                task_.commit.substr(0, 7));
    }
    Progress progress(task_.name.id, total, options_.quiet);
    for (const bool weights : {false, true}) fetch_all(weights, progress);
    return tally_.received_bytes;
  }

 private:
  uint64_t total_bytes() const {
    return std::accumulate(
        task_.files.begin(), task_.files.end(), uint64_t{0},
        [](uint64_t sum, const RemoteFile& file) { return saturating_add(sum, file.size); });
  }

  bool is_all_there() const {
    return std::all_of(task_.files.begin(), task_.files.end(), [&](const RemoteFile& file) {
      return is_file_of(cache_.pointer(task_.commit, file.path), file.size);
    });
  }

  /// Bytes of a file that are on disk already, as far as the listed checksum tells.
  uint64_t bytes_there(const RemoteFile& file) const {
    if (is_file_of(cache_.pointer(task_.commit, file.path), file.size)) return file.size;
    if (file.checksum.kind == Checksum::Kind::kNone) return 0;
    if (is_file_of(cache_.blob(file.checksum.hex), file.size)) return file.size;
    std::error_code code;
    const uint64_t begun = fs::file_size(cache_.incomplete(file.checksum.hex), code);
    return code ? 0 : std::min(begun, file.size);
  }

  void require_space() const {
    uint64_t needed = 0;
    for (const RemoteFile& file : task_.files)
      needed = saturating_add(needed, file.size - bytes_there(file));
    std::error_code code;
    const fs::path folder = cache_.snapshot(task_.commit);
    const fs::space_info space = fs::space(folder, code);
    if (code || space.available >= needed) return;  // some file systems do not report it
    throw DeviceError(fmt::format("{} needs {} more, and the disk has {} free", task_.name.text(),
                                  format_bytes(needed), format_bytes(space.available)),
                      folder.string(),
                      "free disk space, or set HF_HOME to a directory on another disk");
  }

  /// Downloads one group of files, several at a time; this thread shows the progress.
  void fetch_all(bool weights, Progress& progress) {
    std::vector<const RemoteFile*> files;
    for (const RemoteFile& file : task_.files) {
      if (is_weights(file.path) == weights) files.push_back(&file);
    }
    next_ = 0;
    const size_t num_workers = std::min(kParallelFiles, files.size());
    running_ = num_workers;  // set at once: workers decrement it while later ones are being started
    std::vector<std::jthread> workers;
    for (size_t i = 0; i < num_workers; ++i) workers.emplace_back([&] { work(files); });
    std::unique_lock lock(mutex_);
    constexpr auto kTick = std::chrono::milliseconds(100);
    while (!done_.wait_for(lock, kTick, [this] { return running_ == 0; }))
      progress.update(tally_.done_bytes, tally_.received_bytes);
    lock.unlock();
    workers.clear();
    if (failure_) std::rethrow_exception(failure_);
  }

  void work(const std::vector<const RemoteFile*>& files) {
    try {
      HubApi api(settings_, {}, [this] { return should_stop(); });
      for (size_t i = next_++; i < files.size() && !should_stop(); i = next_++)
        fetch(*files[i], api);
      throw_if_stopped(options_.should_stop);
    } catch (...) {
      keep_first_failure();
    }
    const std::lock_guard lock(mutex_);
    --running_;
    done_.notify_all();
  }

  bool should_stop() const { return failed_ || (options_.should_stop && options_.should_stop()); }

  /// Keeps the first failure. The other workers stop because of it, so their failures are ignored.
  void keep_first_failure() {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
    failed_ = true;
  }

  void fetch(const RemoteFile& file, HubApi& api) {
    if (!is_file_of(cache_.pointer(task_.commit, file.path), file.size)) {
      const FileMetadata metadata = api.metadata(task_.name, task_.commit, file);
      const FileLock lock(cache_.lock(metadata.etag), [this] { return should_stop(); });
      if (is_file_of(cache_.blob(metadata.etag), file.size))
        tally_.done_bytes += file.size;
      else
        fetch_blob(file, metadata, lock.is_exclusive(), api);
      cache_.link(task_.commit, file.path, metadata.etag);
    } else {
      tally_.done_bytes += file.size;
    }
  }

  void fetch_blob(const RemoteFile& file, const FileMetadata& metadata, bool exclusive,
                  HubApi& api) {
    const std::string url = api.file_url(task_.name, task_.commit, file.path);
    const BlobTask task{
        .name = task_.name,
        .file = file.path,
        .url = url,
        .etag = metadata.etag,
        .incomplete = cache_.incomplete(exclusive ? metadata.etag : own_name(metadata.etag)),
        .blob = cache_.blob(metadata.etag),
        .size = file.size,
        .checksum = metadata.checksum};
    RetryPolicy policy;
    policy.first_delay_s = settings_.retry_delay_s;
    BlobDownload(task, api, tally_).run(Retries(policy, file.path, [this] {
      return should_stop();
    }));
  }

  /// Without locks each download has its own file, named as in huggingface_hub.
  static std::string own_name(const std::string& etag) {
    return fmt::format("{}.{:08x}", etag, std::random_device{}());
  }

  const SnapshotTask& task_;
  const RepoCache& cache_;
  const Settings& settings_;
  const Options& options_;
  Tally tally_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable done_;
  size_t running_ = 0;          // guarded by mutex_ once workers run
  std::exception_ptr failure_;  // guarded by mutex_
};

}  // namespace

uint64_t download_snapshot(const SnapshotTask& task, const RepoCache& cache,
                           const Settings& settings, const Options& options) {
  return SnapshotDownload(task, cache, settings, options).run();
}

}  // namespace sftrun::hub
