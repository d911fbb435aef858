#include "blob_download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "url.h"

namespace sftrun::hub {
namespace {

/// `bytes 100-199/200`: the first byte, and the size of the whole file.
struct ContentRange {
  uint64_t begin = 0;
  std::string total;
};

std::optional<uint64_t> number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<ContentRange> parse_content_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  const size_t dash = text.find('-'), slash = text.find('/');
  if (!text.starts_with(kUnit) || dash == std::string_view::npos || slash == std::string_view::npos)
    return std::nullopt;
  const auto begin = number(text.substr(kUnit.size(), dash - kUnit.size()));
  if (!begin) return std::nullopt;
  return ContentRange{*begin, std::string(text.substr(slash + 1))};
}

std::string fix_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free disk space, or set HF_HOME to a directory on another disk; partial files are "
             "kept; rerun the same command to resume";
    case EFBIG:
      return "raise the limit on the size of files (ulimit -f), or set HF_HOME to a directory on "
             "another file system";
    default:
      return "set HF_HOME or HF_HUB_CACHE to a directory with write permission";
  }
}

}  // namespace

BlobDownload::BlobDownload(const BlobTask& task, HubApi& api, Tally& tally)
    : task_(task), api_(api), tally_(tally), digest_(task.checksum.kind, task.size) {
  constexpr mode_t kAsUmaskSays = 0666;
  const OpenedFile opened =
      open_file(task_.incomplete, O_RDWR | O_CREAT | O_NOFOLLOW, kAsUmaskSays);
  if (opened.fd < 0) {
    throw DeviceError(fmt::format("cannot write {}: {}", task_.file, opened.reason),
                      task_.incomplete.string(),
                      opened.error == 0 ? opened.fix : fix_for(opened.error));
  }
  fd_ = opened.fd;
  take_up();
}

BlobDownload::~BlobDownload() {
  if (fd_ >= 0) ::close(fd_);
}

void BlobDownload::run(Retries retries) {
  for (;;) {
    const uint64_t furthest = furthest_;
    try {
      if (offset_ < task_.size) attempt();
      return finish();
    } catch (const TransientFailure& failure) {
      retries.failed(failure, furthest_ > furthest);
    }
  }
}

/// Resumes an earlier download: hashes the bytes that are on disk, unless there are too many.
void BlobDownload::take_up() {
  constexpr size_t kPiece = size_t{1} << 20;
  std::vector<char> piece(kPiece);
  for (ssize_t got = 0; offset_ <= task_.size; offset_ += static_cast<uint64_t>(got)) {
    got = ::pread(fd_, piece.data(), piece.size(), static_cast<off_t>(offset_));
    if (got <= 0) break;
    digest_.update(piece.data(), static_cast<size_t>(got));
  }
  tally_.done_bytes += offset_;
  furthest_ = std::min(offset_, task_.size);
  if (offset_ > task_.size) restart();
}

void BlobDownload::attempt() {
  Request request{.url = task_.url};
  if (offset_ > 0) {
    request.headers.push_back(fmt::format("Range: bytes={}-", offset_));
    // Storage hosts, to which the hub redirects, use other ETags than the hub, so If-Range would
    // always restart the download. With a checksum the complete file is verified at the end anyway.
    if (task_.checksum.kind == Checksum::Kind::kNone)
      request.headers.push_back(fmt::format("If-Range: \"{}\"", task_.etag));
  }
  const Response response =
      api_.http().send(request, {.begin = [this](const Response& answer) { accept(answer); },
                                 .write = [this](std::span<const char> bytes) { store(bytes); }});
  constexpr long kRangeNotSatisfiable = 416;
  if (response.status == kRangeNotSatisfiable) {
    restart();
    throw TransientFailure("the server does not have this range of the file");
  }
  if (!response.ok()) api_.fail(task_.name, response);
  if (offset_ < task_.size) {
    throw TransientFailure(fmt::format("the file ended after {} of {} bytes", offset_, task_.size));
  }
}

/// Checks the response headers against the request, before the body is received.
void BlobDownload::accept(const Response& response) {
  constexpr long kPartial = 206;
  if (response.status == kPartial) {
    const auto range = parse_content_range(response.header("content-range"));
    const bool fits = range && range->begin == offset_ &&
                      (range->total == "*" || range->total == std::to_string(task_.size));
    if (!fits) {
      restart();
      throw TransientFailure("the server sent another part of the file than requested");
    }
  } else if (offset_ > 0) {
    restart();  // the server does not support ranges
  }
  const std::string encoding = response.header("content-encoding");
  if (!encoding.empty() && encoding != "identity")
    throw TransientFailure("the server compressed the file, although it was asked not to");
  const auto length = number(response.header("content-length"));
  if (length && *length != task_.size - offset_) {
    throw TransientFailure(fmt::format("the server announced {} bytes, but {} are missing", *length,
                                       task_.size - offset_));
  }
}

void BlobDownload::store(std::span<const char> bytes) {
  if (bytes.size() > task_.size - offset_) {
    restart();
    throw TransientFailure(
        fmt::format("the server sent more than the {} bytes of the file", task_.size));
  }
  digest_.update(bytes.data(), bytes.size());
  tally_.received_bytes += bytes.size();
  while (!bytes.empty()) {
    // Written by offset, not appended: if locking fails, two downloads write the same bytes to the
    // same places.
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset_));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_write_error();
    const auto num_bytes = static_cast<size_t>(written);
    bytes = bytes.subspan(num_bytes);
    offset_ += num_bytes;
    tally_.done_bytes += num_bytes;
  }
  furthest_ = std::max(furthest_, offset_);
}

void BlobDownload::restart() {
  tally_.done_bytes -= offset_;
  offset_ = 0;
  digest_ = Digest(task_.checksum.kind, task_.size);
  if (::ftruncate(fd_, 0) != 0) throw_write_error();
}

void BlobDownload::finish() {
  const bool right =
      task_.checksum.kind == Checksum::Kind::kNone || digest_.hex() == task_.checksum.hex;
  if (!right) {
    constexpr int kAttempts = 2;  // the first time the resumed part may be wrong
    restart();
    if (++wrong_checksums_ < kAttempts)
      throw TransientFailure("the downloaded file has a wrong checksum");
    ::unlink(task_.incomplete.c_str());
    throw CommError("the downloaded file has a wrong checksum, twice", shown_url(task_.url),
                    "check whether a proxy changes it, or try again later");
  }
  if (::fsync(fd_) != 0) throw_write_error();
  if (::rename(task_.incomplete.c_str(), task_.blob.c_str()) != 0) throw_write_error();
  sync_directory(task_.blob.parent_path());
}

void BlobDownload::throw_write_error() const {
  const int error = errno;
  throw DeviceError(fmt::format("cannot write {}: {}", task_.file, std::strerror(error)),
                    task_.incomplete.string(), fix_for(error));
}

}  // namespace sftrun::hub
