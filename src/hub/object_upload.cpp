#include "object_upload.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/open_file.h"

namespace sftrun::hub {
namespace {

/// Reads a file to upload, or its replaced content, by offset.
class UploadReader {
 public:
  explicit UploadReader(const LocalFile& file) : file_(file), size_(file.size()) {
    if (file.content) return;
    const OpenedFile opened = open_file(file.source, O_RDONLY);
    if (opened.fd < 0)
      throw DataError(fmt::format("cannot read {}: {}", file.path, opened.reason),
                      file.source.string(), opened.fix);
    fd_ = opened.fd;
  }
  ~UploadReader() {
    if (fd_ >= 0) ::close(fd_);
  }
  UploadReader(const UploadReader&) = delete;
  UploadReader& operator=(const UploadReader&) = delete;

  uint64_t size() const { return size_; }

  /// @return at least one byte   @pre offset < size()
  size_t read(uint64_t offset, std::span<char> into) const {
    const auto most = static_cast<size_t>(std::min<uint64_t>(into.size(), size_ - offset));
    if (file_.content) {
      std::memcpy(into.data(), file_.content->data() + offset, most);
      return most;
    }
    for (;;) {
      const ssize_t got = ::pread(fd_, into.data(), most, static_cast<off_t>(offset));
      if (got > 0) return static_cast<size_t>(got);
      if (got < 0 && errno == EINTR) continue;
      throw DataError(got == 0
                          ? fmt::format("{} became shorter while it was uploaded", file_.path)
                          : fmt::format("cannot read {}: {}", file_.path, std::strerror(errno)),
                      file_.source.string(), "let no other program write it, then rerun");
    }
  }

 private:
  const LocalFile& file_;
  uint64_t size_;
  int fd_ = -1;
};

/// An address that storage no longer accepts, or a part that it did not take: the next attempt asks
/// the hub for new addresses.
[[noreturn]] void refuse_put(const LfsObject& object, const Response& response,
                             const UploadApi& api) {
  const std::string what = "cannot upload " + object.path;
  constexpr long kBadRequest = 400, kExpired = 403, kGone = 404;
  const bool is_expired = response.status == kExpired || response.status == kGone;
  if (is_expired || response.status == kBadRequest)
    throw TransientFailure(fmt::format("{}: its storage answers with status {}{}", what,
                                       response.status,
                                       is_expired ? ", as for an address that has expired" : ""));
  refuse_upload(api.step(what), response);
}

class ObjectUpload {
 public:
  ObjectUpload(const LocalFile& file, const LfsObject& object, UploadApi& api, SentTally& tally)
      : file_(file), object_(object), api_(api), tally_(tally), reader_(file) {}

  /// One attempt.   @throws TransientFailure
  void attempt(const LfsPlace& place) {
    tally_.done_bytes -= done_;
    done_ = 0;
    if (place.part_bytes == 0) {
      put(place.url, place.headers, 0, object_.size);
    } else {
      std::vector<PartTag> tags;
      for (size_t i = 0; i < place.part_urls.size(); ++i) tags.push_back(put_part(place, i));
      api_.complete(object_, place, tags);
    }
    if (!place.verify_url.empty()) api_.verify(object_, place);
  }

  void is_there() {
    tally_.done_bytes += object_.size - done_;
    done_ = object_.size;
  }

 private:
  /// Retried alone: the other parts stay where they are.
  PartTag put_part(const LfsPlace& place, size_t index) {
    const uint64_t begin = place.part_bytes * index;
    const uint64_t size = std::min(place.part_bytes, object_.size - begin);
    const std::string what =
        fmt::format("{} (part {} of {})", object_.path, index + 1, place.part_urls.size());
    Retries retries(api_.policy(), what, api_.should_stop());
    for (;;) {
      const uint64_t before = done_;
      try {
        const Response response = put(place.part_urls[index], {}, begin, size);
        std::string etag = response.header("etag");
        if (etag.empty()) throw TransientFailure("storage sent no ETag for a part");
        return {.number = index + 1, .etag = std::move(etag)};
      } catch (const TransientFailure& failure) {
        if (has_expired_) throw;
        tally_.done_bytes -= done_ - before;
        done_ = before;
        retries.failed(failure);
      }
    }
  }

  Response put(const std::string& url, const std::vector<std::string>& headers, uint64_t begin,
               uint64_t size) {
    constexpr double kStallFactor = 6;  // storage checks what it received before it answers
    const Request request{.url = url,
                          .headers = headers,
                          .upload = Stream{.size = size,
                                           .read =
                                               [&](uint64_t offset, std::span<char> into) {
                                                 return give(begin + offset, begin, into);
                                               }},
                          .stall_s = api_.settings().stall_timeout_s * kStallFactor};
    begin_of_put_ = done_;
    has_expired_ = false;
    const Response response = api_.http().send(request);
    if (response.ok()) return response;
    if (response.status == kFirstRefusal) require_unchanged();
    has_expired_ = response.status >= kFirstRefusal && response.status < kFirstServerError;
    refuse_put(object_, response, api_);
  }

  /// Storage refuses bytes that are not those of the SHA-256.
  void require_unchanged() const {
    if (digest_of(file_, Checksum::Kind::kSha256, api_.should_stop()) == object_.sha256) return;
    throw DataError(object_.path + " was changed while it was uploaded", file_.source.string(),
                    "let no other program write it, then rerun the same command");
  }

  size_t give(uint64_t offset, uint64_t begin, std::span<char> into) {
    const size_t copied = reader_.read(offset, into);
    tally_.sent_bytes += copied;
    const uint64_t now = begin_of_put_ + (offset - begin) + copied;  // less after a new start
    tally_.done_bytes += now - done_;
    done_ = now;
    return copied;
  }

  static constexpr long kFirstRefusal = 400, kFirstServerError = 500;

  const LocalFile& file_;
  const LfsObject& object_;
  UploadApi& api_;
  SentTally& tally_;
  UploadReader reader_;
  uint64_t done_ = 0, begin_of_put_ = 0;
  bool has_expired_ = false;
};

}  // namespace

uint64_t LocalFile::size() const {
  return content ? content->size() : bytes_of_file(source);
}

std::string beginning_of(const LocalFile& file, size_t num_bytes) {
  const UploadReader reader(file);
  std::string text(static_cast<size_t>(std::min<uint64_t>(num_bytes, reader.size())), '\0');
  for (size_t at = 0; at < text.size();)
    at += reader.read(at, std::span(text.data(), text.size()).subspan(at));
  return text;
}

std::string digest_of(const LocalFile& file, Checksum::Kind kind, const ShouldStop& should_stop) {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  const UploadReader reader(file);
  Digest digest(kind, reader.size());
  std::vector<char> piece(kPieceBytes);
  for (uint64_t at = 0; at < reader.size();) {
    throw_if_stopped(should_stop);
    const size_t got = reader.read(at, piece);
    digest.update(piece.data(), got);
    at += got;
  }
  return digest.hex();
}

void upload_object(const LocalFile& file, const LfsObject& object, const std::string& branch,
                   LfsPlace place, UploadApi& api, SentTally& tally) {
  ObjectUpload upload(file, object, api, tally);
  Retries retries(api.policy(), object.path, api.should_stop());
  for (bool is_first = true; !place.is_there; is_first = false) {
    try {
      if (!is_first) place = api.places(branch, std::span(&object, 1)).front();
      if (place.is_there) break;
      upload.attempt(place);
      break;
    } catch (const TransientFailure& failure) {
      retries.failed(failure);
    }
  }
  upload.is_there();
}

}  // namespace sftrun::hub
