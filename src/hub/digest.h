#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

/// Checksums by which a hub names the content of files.
namespace sftrun::hub {

/// What a file's content must hash to.
struct Checksum {
  enum class Kind {
    kNone,     ///< not known: only the size is checked
    kSha256,   ///< of the content: large files (git LFS)
    kGitBlob,  ///< SHA-1 of "blob <size>\0" and the content: git's own name for it
  };
  Kind kind = Kind::kNone;
  std::string hex = {};
  bool operator==(const Checksum&) const = default;
};

/// By its form: 64 hexadecimal digits are a SHA-256, 40 git's.
Checksum checksum_of_etag(std::string_view etag);

/// A checksum being taken, piece by piece.
class Digest {
 public:
  /// @param size of the whole content, which git hashes first
  Digest(Checksum::Kind kind, uint64_t size);
  void update(const void* data, size_t num_bytes);
  std::string hex();  ///< ends it; empty for kNone

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace sftrun::hub
