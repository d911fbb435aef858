#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// XXH3 (https://xxhash.com), a checksum about as fast as memory. It detects damage and changes,
/// but not deliberate manipulation.
namespace sftrun {

uint64_t xxh3_64(std::span<const std::byte> bytes);
/// 128 bits as 32 hexadecimal digits.
std::string xxh3_128(std::span<const std::byte> bytes);
std::string xxh3_128(std::string_view text);

/// Checksums of consecutive blocks of a stream: the 64-bit XXH3 of each `kBytes`; the last block
/// may be shorter.
class BlockChecksums {
 public:
  static constexpr size_t kBytes = size_t{64} << 10;

  void add(const void* data, size_t num_bytes);
  /// The checksums of all bytes added.
  std::vector<uint64_t> finish();

 private:
  std::vector<std::byte> block_;  // the incomplete block
  std::vector<uint64_t> sums_;
};

}  // namespace sftrun
