#pragma once

#include <array>
#include <cstdint>

/// Counter-based random numbers: a value is a pure function of (key, counter). It does not depend
/// on rank, gradient accumulation, checkpointing or the order of evaluation.
namespace sftrun {

using Philox4 = std::array<uint32_t, 4>;

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
constexpr Philox4 philox4x32(Philox4 counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMul0 * counter[0], product1 = kMul1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

/// A small sequential generator over Philox for decisions on the host (shuffles, splits, initial
/// weights). Same numbers on every platform; two streams of one seed are independent.
class RandomStream {
 public:
  RandomStream(uint64_t seed, uint64_t stream);
  uint32_t next_u32();
  uint64_t next_below(uint64_t bound);  ///< uniform in [0, bound), unbiased (rejection)
  double next_unit();                   ///< uniform in [0, 1), 53 bits
  double next_normal();                 ///< standard normal (Box-Muller)

 private:
  std::array<uint32_t, 2> key_;
  Philox4 counter_, block_{};
  int used_ = 4;
};

}  // namespace sftrun
