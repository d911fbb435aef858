#include "sftrun/core/xxh3.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

namespace sftrun {

uint64_t xxh3_64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string xxh3_128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string xxh3_128(std::string_view text) {
  return xxh3_128(std::as_bytes(std::span(text)));
}

void BlockChecksums::add(const void* data, size_t num_bytes) {
  const auto* cursor = static_cast<const std::byte*>(data);
  while (num_bytes > 0) {
    const size_t take = std::min(num_bytes, kBytes - block_.size());
    block_.insert(block_.end(), cursor, cursor + take);
    cursor += take;
    num_bytes -= take;
    if (block_.size() < kBytes) continue;
    sums_.push_back(xxh3_64(block_));
    block_.clear();
  }
}

std::vector<uint64_t> BlockChecksums::finish() {
  if (!block_.empty()) sums_.push_back(xxh3_64(block_));
  block_.clear();
  return std::move(sums_);
}

}  // namespace sftrun
