#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// XXH3 (https://xxhash.com): a checksum at the speed of memory. It finds damage and changes, and
/// is no protection against an attacker.
namespace sftrun {

uint64_t xxh3_64(std::span<const std::byte> bytes);
/// 128 bits as 32 hexadecimal digits.
std::string xxh3_128(std::span<const std::byte> bytes);
std::string xxh3_128(std::string_view text);

/// Checksums of consecutive blocks of a stream: XXH3 with 64 bits of each `kBytes`, the last block
/// may be shorter.
class BlockChecksums {
 public:
  static constexpr size_t kBytes = size_t{64} << 10;

  void add(const void* data, size_t num_bytes);
  /// Those of everything that was added.
  std::vector<uint64_t> finish();

 private:
  std::vector<std::byte> block_;  // not yet whole
  std::vector<uint64_t> sums_;
};

}  // namespace sftrun
