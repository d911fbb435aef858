#pragma once

#include "cuda/device.cuh"

// Copies contiguous bytes of any alignment to shared memory, 16 at a time, to be decoded there.
namespace sftrun::kernels::cuda {

/// Load of data that is read only once (streaming cache hint).
__device__ __forceinline__ uint4 load_once(const uint4* p) {
#ifdef __CUDA_ARCH__
  return __ldcs(p);
#else
  return *p;
#endif
}

/// Copy of up to kMax bytes by kOfThreads threads, split into load and store so that several loads
/// can be in flight.
template <int kMax, int kOfThreads>
class Staging {
 public:
  static constexpr int kWord = 16;
  /// Size of the destination, with padding for reads past the end.
  static constexpr int kBytes = (kMax + kWord - 1) / kWord * kWord + 2 * kWord;

  /// @param count 0 < count <= kMax
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
  /// @param to [kBytes] in shared memory, aligned to kWord; the data begins at offset
  /// `shift_of(from)`
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
  static constexpr int kLoads = (kMax / kWord + kOfThreads - 1) / kOfThreads;
  static_assert(kOfThreads >= 2 * kWord);

  /// Number of bytes before the first multiple of kWord.
  __device__ static __forceinline__ int lead_of(int shift, int count) {
    const int lead = (kWord - shift) % kWord;
    return lead < count ? lead : count;
  }

  uint4 words_[kLoads];
  int shift_, count_, edge_;  ///< edge_: index of the single byte that this thread copies, or -1
  uint8_t at_edge_;
};

}  // namespace sftrun::kernels::cuda
