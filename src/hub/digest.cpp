#include "digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "sftrun/core/error.h"

namespace sftrun::hub {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

}  // namespace

Checksum checksum_of_etag(std::string_view etag) {
  constexpr size_t kSha256Digits = 64, kSha1Digits = 40;
  if (etag.find_first_not_of(kHexDigits) != std::string_view::npos) return {};
  if (etag.size() == kSha256Digits) return {Checksum::Kind::kSha256, std::string(etag)};
  if (etag.size() == kSha1Digits) return {Checksum::Kind::kGitBlob, std::string(etag)};
  return {};
}

void Digest::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

Digest::Digest(Checksum::Kind kind, uint64_t size) {
  if (kind == Checksum::Kind::kNone) return;
  context_.reset(EVP_MD_CTX_new());
  const EVP_MD* algorithm = kind == Checksum::Kind::kSha256 ? EVP_sha256() : EVP_sha1();
  SFTRUN_CHECK(context_ && EVP_DigestInit_ex(context_.get(), algorithm, nullptr) == 1);
  if (kind != Checksum::Kind::kGitBlob) return;
  const std::string header = fmt::format("blob {}", size);
  update(header.c_str(), header.size() + 1);  // includes the NUL
}

void Digest::update(const void* data, size_t num_bytes) {
  if (context_) SFTRUN_CHECK(EVP_DigestUpdate(context_.get(), data, num_bytes) == 1);
}

std::string Digest::hex() {
  if (!context_) return {};
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int size = 0;
  SFTRUN_CHECK(EVP_DigestFinal_ex(context_.get(), bytes.data(), &size) == 1);
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kHexDigits[bytes[i] >> 4];
    text += kHexDigits[bytes[i] & 15];
  }
  return text;
}

}  // namespace sftrun::hub
