#pragma once

#include "cuda/device.cuh"

// Bytes that lie together are copied into shared memory 16 at a time, whatever their address, and
// decoded there.
namespace sftrun::kernels::cuda {

/// Memory that is read once and is not to stay in caches.
__device__ __forceinline__ uint4 load_once(const uint4* p) {
#ifdef __CUDA_ARCH__
  return __ldcs(p);
#else
  return *p;
#endif
}

/// One copy of up to kMost bytes by kOfThreads threads. It is in two steps, so that the loads of
/// several are on their way at once.
template <int kMost, int kOfThreads>
class Staging {
 public:
  static constexpr int kWord = 16;
  /// What it takes at the destination, with words to spare for what is read beyond the end.
  static constexpr int kBytes = (kMost + kWord - 1) / kWord * kWord + 2 * kWord;

  /// @param count 0 < count <= kMost
  __device__ __forceinline__ void load(const uint8_t* from, int64_t count, int thread) {
    shift_ = static_cast<int>(reinterpret_cast<uintptr_t>(from) % kWord);
    count_ = static_cast<int>(count);
    const int lead = lead_of(shift_, count_), words = (count_ - lead) / kWord,
              tail = lead + words * kWord;
    for (int k = 0; k < kLoads; ++k) {
      const int word = thread + k * kOfThreads;
      if (word < words) words_[k] = load_once(reinterpret_cast<const uint4*>(from + lead) + word);
    }
    edge_ = thread < kWord ? (thread < lead ? thread : -1) : tail + thread - kWord;
    if (thread >= 2 * kWord || edge_ >= count_) edge_ = -1;
    if (edge_ >= 0) at_edge_ = from[edge_];
  }
  /// @param to [kBytes] of shared memory, aligned to kWord; the copy begins as many bytes behind it
  /// as the bytes do behind a multiple of kWord: `shift_of`
  __device__ __forceinline__ void store(uint8_t* to, int thread) const {
    const int lead = lead_of(shift_, count_), words = (count_ - lead) / kWord;
    auto* const whole = reinterpret_cast<uint4*>(to + shift_ + lead);
    for (int k = 0; k < kLoads; ++k) {
      const int word = thread + k * kOfThreads;
      if (word < words) whole[word] = words_[k];
    }
    if (edge_ >= 0) to[shift_ + edge_] = at_edge_;
  }
  __device__ static __forceinline__ int shift_of(const uint8_t* from) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(from) % kWord);
  }

 private:
  static constexpr int kLoads = (kMost / kWord + kOfThreads - 1) / kOfThreads;
  static_assert(kOfThreads >= 2 * kWord);

  /// Bytes before the first multiple of kWord.
  __device__ static __forceinline__ int lead_of(int shift, int count) {
    const int lead = (kWord - shift) % kWord;
    return lead < count ? lead : count;
  }

  uint4 words_[kLoads];
  int shift_, count_, edge_;  ///< edge_: the single byte that this thread copies, or -1
  uint8_t at_edge_;
};

}  // namespace sftrun::kernels::cuda
