#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>

#include "api.h"
#include "digest.h"

namespace sftrun::hub {

/// One blob to download.
struct BlobTask {
  const RepoName& name;
  std::string file, url, etag;  ///< file: path in the repository, for messages
  std::filesystem::path incomplete, blob;
  uint64_t size = 0;
  Checksum checksum;
};

/// Progress of all downloads of a snapshot.
struct Tally {
  std::atomic<uint64_t> done_bytes{0};      ///< bytes on disk, including unfinished downloads
  std::atomic<uint64_t> received_bytes{0};  ///< bytes received over the network
};

/// Downloads one blob: resumes at the end of `incomplete`, retries after interruptions, verifies
/// size and checksum, and renames the file into place. `blob` is either complete or absent, and
/// `incomplete` keeps the bytes received. The caller holds the blob's lock.
class BlobDownload {
 public:
  BlobDownload(const BlobTask& task, HubApi& api, Tally& tally);
  ~BlobDownload();
  BlobDownload(const BlobDownload&) = delete;
  BlobDownload& operator=(const BlobDownload&) = delete;

  /// @throws DataError, CommError, DeviceError, Error (130)
  void run(Retries retries);

 private:
  void take_up();
  void attempt();
  void accept(const Response& response);
  void store(std::span<const char> bytes);
  void restart();
  void finish();
  [[noreturn]] void throw_write_error() const;

  const BlobTask& task_;
  HubApi& api_;
  Tally& tally_;
  int fd_ = -1;
  uint64_t offset_ = 0, furthest_ = 0;
  int wrong_checksums_ = 0;
  Digest digest_;
};

}  // namespace sftrun::hub
