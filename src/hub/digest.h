#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

/// Checksums that the hub reports for files.
namespace sftrun::hub {

/// The expected hash of a file.
struct Checksum {
  enum class Kind {
    kNone,     ///< unknown: only the size is checked
    kSha256,   ///< of the content: large files (git LFS)
    kGitBlob,  ///< SHA-1 of "blob <size>\0" and the content: git's object name
  };
  Kind kind = Kind::kNone;
  std::string hex = {};
  bool operator==(const Checksum&) const = default;
};

/// The kind follows from the form: 64 hexadecimal digits are a SHA-256, 40 a git object name.
Checksum checksum_of_etag(std::string_view etag);

/// Computes a checksum incrementally.
class Digest {
 public:
  /// @param size of the whole content, which git hashes first
  Digest(Checksum::Kind kind, uint64_t size);
  void update(const void* data, size_t num_bytes);
  std::string hex();  ///< finishes the checksum; empty for kNone

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace sftrun::hub
