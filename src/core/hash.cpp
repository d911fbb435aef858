#include "sftrun/core/hash.h"

#include <fmt/format.h>

#include <cstring>

namespace sftrun {
namespace {

constexpr uint64_t kPrime = 0x100000001b3ULL;

uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

}  // namespace

Fingerprint& Fingerprint::add(const void* data, size_t num_bytes) {
  const char* cursor = static_cast<const char*>(data);
  length_ += num_bytes;
  while (num_bytes > 0) {
    uint64_t word = 0;
    const size_t take = num_bytes < 8 ? num_bytes : 8;
    std::memcpy(&word, cursor, take);
    a_ = (a_ ^ mix(word)) * kPrime;
    b_ = mix(b_ + word * 0x9e3779b97f4a7c15ULL);
    cursor += take;
    num_bytes -= take;
  }
  return *this;
}

Fingerprint& Fingerprint::add(std::string_view text) {
  add(static_cast<uint64_t>(text.size()));
  return add(text.data(), text.size());
}

Fingerprint& Fingerprint::add(uint64_t value) {
  return add(&value, sizeof value);
}

std::string Fingerprint::hex() const {
  return fmt::format("{:016x}{:016x}", mix(a_ ^ length_), mix(b_ + length_));
}

}  // namespace sftrun
