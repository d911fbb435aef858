#include <algorithm>
#include <cstring>

#include "resize_passes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define SFTRUN_AVX2 __attribute__((target("avx2")))
#endif

namespace sftrun::images {

#if defined(__x86_64__)
namespace {

/// Two 16-bit halves of two weights, as _mm256_madd_epi16 takes them: high parts and low parts.
struct SplitPair {
  int32_t high, low;
};

bool fits_in_halves(const ResizeWeights& weights) {
  constexpr int32_t kMost = INT16_MAX << kLowBits;
  return std::all_of(weights.values.begin(), weights.values.end(),
                     [](int32_t weight) { return weight >= -kMost && weight <= kMost; });
}

SplitPair split(int32_t first, int32_t second) {
  constexpr int32_t kLowMask = (1 << kLowBits) - 1;
  const auto pair = [](int32_t a, int32_t b) {
    return static_cast<int32_t>(static_cast<uint32_t>(b) << 16 |
                                (static_cast<uint32_t>(a) & 0xFFFF));
  };
  return {pair(first >> kLowBits, second >> kLowBits), pair(first & kLowMask, second & kLowMask)};
}

/// Weights of rows, four at a time: high parts of two pairs, low parts of two pairs.
std::vector<int32_t> in_fours(const ResizeWeights& weights) {
  std::vector<int32_t> fours(weights.values.size());
  for (size_t i = 0; i < fours.size(); i += 4) {
    const int32_t* weight = weights.values.data() + i;
    const SplitPair a = split(weight[0], weight[1]), b = split(weight[2], weight[3]);
    const int32_t four[4] = {a.high, b.high, a.low, b.low};
    std::memcpy(fours.data() + i, four, sizeof(four));
  }
  return fours;
}

constexpr int kRowsTogether = 4;
// Windows are read in fours of pixels, and a load of 16 bytes begins at each.
constexpr int64_t kReadBehindFours = 32;

/// The value of each of 8 sums: (high << kLowBits) + low, rounded, without the fractional bits; not yet clipped.
SFTRUN_AVX2 inline __m256i joined(__m256i high, __m256i low) {
  const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, kLowBits), low);
  return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << (kWeightBits - 1))),
                           kWeightBits);
}
/// The same where the sums of the two halves belong together.
SFTRUN_AVX2 inline __m128i joined_halves(__m256i high, __m256i low) {
  const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, kLowBits), low);
  const __m128i halves =
      _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  return _mm_srai_epi32(_mm_add_epi32(halves, _mm_set1_epi32(1 << (kWeightBits - 1))), kWeightBits);
}

/// One pixel of four rows: 4 bytes each, of which the last is 0.
SFTRUN_AVX2 inline __m128i four_sums(const uint8_t* const* rows, int64_t first,
                                     const int32_t* weights, int64_t fours) {
  // Of four pixels in 12 bytes: (r0 r1) (g0 g1) (b0 b1) 0 in the lower half, pixels 2 and 3 in the upper one, 16 bits each.
  const __m256i order =
      _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                       -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const __m256i high_places = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  const __m256i low_places = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
  __m256i high[kRowsTogether], low[kRowsTogether];
  for (int r = 0; r < kRowsTogether; ++r) high[r] = low[r] = _mm256_setzero_si256();
  for (int64_t j = 0; j < fours; ++j) {
    const __m256i four = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(weights + j * 4)));
    const __m256i high_weights = _mm256_permutevar8x32_epi32(four, high_places);
    const __m256i low_weights = _mm256_permutevar8x32_epi32(four, low_places);
    for (int r = 0; r < kRowsTogether; ++r) {
      const auto* pixels = reinterpret_cast<const __m128i*>(rows[r] + (first + j * 4) * 3);
      const __m256i values =
          _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(pixels)), order);
      high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(values, high_weights));
      low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(values, low_weights));
    }
  }
  const __m128i upper =
      _mm_packs_epi32(joined_halves(high[0], low[0]), joined_halves(high[1], low[1]));
  const __m128i lower =
      _mm_packs_epi32(joined_halves(high[2], low[2]), joined_halves(high[3], low[3]));
  return _mm_packus_epi16(upper, lower);
}

SFTRUN_AVX2 void resize_four_rows(const uint8_t* const* rows, const ResizeWeights& weights,
                                  const int32_t* fours, uint8_t* const* to) {
  const auto width = static_cast<int64_t>(weights.windows.size());
  for (int64_t x = 0; x < width; ++x) {
    const auto [first, count] = weights.windows[static_cast<size_t>(x)];
    alignas(16) uint8_t pixels[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(pixels),
                    four_sums(rows, first, fours + x * weights.stride, (count + 3) / 4));
    // The fourth byte is overwritten by the next pixel. The last pixel has none, and the byte behind it belongs to another row.
    if (x + 1 < width) {
      for (int r = 0; r < kRowsTogether; ++r) std::memcpy(to[r] + x * 3, pixels + r * 4, 4);
    } else {
      for (int r = 0; r < kRowsTogether; ++r) std::memcpy(to[r] + x * 3, pixels + r * 4, 3);
    }
  }
}

/// 32 bytes of one row: sums over `count` rows, two at a time.
SFTRUN_AVX2 void resize_32_bytes(ConstRows from, int64_t first, int64_t begin,
                                 const SplitPair* pairs, int64_t count, uint8_t* to) {
  const __m256i zero = _mm256_setzero_si256();
  __m256i high[4] = {zero, zero, zero, zero}, low[4] = {zero, zero, zero, zero};
  for (int64_t j = 0; j < count; j += 2) {
    const auto* one = reinterpret_cast<const __m256i*>(from.row(first + j) + begin);
    const auto* two =
        reinterpret_cast<const __m256i*>(from.row(first + std::min(j + 1, count - 1)) + begin);
    const __m256i a = _mm256_loadu_si256(one), b = _mm256_loadu_si256(two);
    const __m256i lower = _mm256_unpacklo_epi8(a, b), upper = _mm256_unpackhi_epi8(a, b);
    const __m256i values[4] = {_mm256_unpacklo_epi8(lower, zero), _mm256_unpackhi_epi8(lower, zero),
                               _mm256_unpacklo_epi8(upper, zero),
                               _mm256_unpackhi_epi8(upper, zero)};
    const __m256i high_weights = _mm256_set1_epi32(pairs[j / 2].high);
    const __m256i low_weights = _mm256_set1_epi32(pairs[j / 2].low);
    for (int i = 0; i < 4; ++i) {
      high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(values[i], high_weights));
      low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(values[i], low_weights));
    }
  }
  // Packing undoes the order of unpacking.
  const __m256i lower = _mm256_packs_epi32(joined(high[0], low[0]), joined(high[1], low[1]));
  const __m256i upper = _mm256_packs_epi32(joined(high[2], low[2]), joined(high[3], low[3]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + begin), _mm256_packus_epi16(lower, upper));
}

class RowPassAvx2 final : public RowPass {
 public:
  explicit RowPassAvx2(const ResizeWeights& weights)
      : RowPass(weights.windows.size(), kReadBehindFours),
        weights_(weights),
        fours_(in_fours(weights)) {}

 private:
  void run_four(const uint8_t* const* rows, uint8_t* const* to) const override {
    resize_four_rows(rows, weights_, fours_.data(), to);
  }

  ResizeWeights weights_;
  std::vector<int32_t> fours_;
};

bool suits_avx2(const ResizeWeights& weights) {
  return __builtin_cpu_supports("avx2") && fits_in_halves(weights);
}

}  // namespace

std::unique_ptr<RowPass> row_pass_avx2(const ResizeWeights& weights) {
  return suits_avx2(weights) ? std::make_unique<RowPassAvx2>(weights) : nullptr;
}

int64_t resize_columns_avx2(ConstRows from, int64_t first_row, int64_t bytes,
                            const ResizeWeights& weights, Rows to) {
  if (!suits_avx2(weights)) return 0;
  const int64_t done = bytes / 32 * 32;
  std::vector<SplitPair> pairs(static_cast<size_t>(weights.stride / 2));
  for (size_t i = 0; i < weights.windows.size(); ++i) {
    const auto [first, count] = weights.windows[i];
    const int32_t* weight = weights.of(static_cast<int64_t>(i));
    for (size_t j = 0; j < pairs.size(); ++j) pairs[j] = split(weight[2 * j], weight[2 * j + 1]);
    for (int64_t begin = 0; begin < done; begin += 32)
      resize_32_bytes(from, first - first_row, begin, pairs.data(), count,
                      to.row(static_cast<int64_t>(i)));
  }
  return done;
}
#else
std::unique_ptr<RowPass> row_pass_avx2(const ResizeWeights&) {
  return nullptr;
}
int64_t resize_columns_avx2(ConstRows, int64_t, int64_t, const ResizeWeights&, Rows) {
  return 0;
}
#endif

}  // namespace sftrun::images
