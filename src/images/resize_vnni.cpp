#include <algorithm>
#include <cstring>

#include "resize_passes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define SFTRUN_VNNI __attribute__((target("avx2,avx512f,avx512vl,avx512vnni")))
#endif

namespace sftrun::images {

#if defined(__x86_64__)
namespace {

/// Weights of four values as three digits: weight = (high << 16) + (middle << 8) + low, each digit a signed byte. A product of digits and
/// values is one instruction (vpdpbusd), and the sum of 32 bits is the same number.
struct FourWeights {
  int32_t high = 0, middle = 0, low = 0;
};

bool fits_in_digits(const ResizeWeights& weights) {
  constexpr int32_t kMost = 127 << 16;
  return std::all_of(weights.values.begin(), weights.values.end(),
                     [](int32_t weight) { return weight >= -kMost && weight < kMost; });
}

FourWeights digits_of(const int32_t* weights, int64_t count) {
  int8_t digits[3][4] = {};
  for (int64_t i = 0; i < std::min<int64_t>(count, 4); ++i) {
    digits[2][i] = static_cast<int8_t>(weights[i] & 0xFF);
    const int32_t rest = (weights[i] - digits[2][i]) >> 8;
    digits[1][i] = static_cast<int8_t>(rest & 0xFF);
    digits[0][i] = static_cast<int8_t>((rest - digits[1][i]) >> 8);
  }
  FourWeights four;
  std::memcpy(&four.high, digits[0], 4);
  std::memcpy(&four.middle, digits[1], 4);
  std::memcpy(&four.low, digits[2], 4);
  return four;
}

constexpr int64_t kRowsAtOnce = 4;
// Windows are read in fours of pixels, and a load of 16 bytes begins at each.
constexpr int64_t kReadBehind = 32;

/// Sums of the three digits.
struct DigitSums {
  __m256i high, middle, low;
};

SFTRUN_VNNI inline DigitSums no_sums() {
  return {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
}
SFTRUN_VNNI inline void add_products(DigitSums& sums, __m256i values, const FourWeights& weights) {
  sums.high = _mm256_dpbusd_epi32(sums.high, values, _mm256_set1_epi32(weights.high));
  sums.middle = _mm256_dpbusd_epi32(sums.middle, values, _mm256_set1_epi32(weights.middle));
  sums.low = _mm256_dpbusd_epi32(sums.low, values, _mm256_set1_epi32(weights.low));
}
/// Rounded, without the fractional bits; not yet clipped.
SFTRUN_VNNI inline __m256i total_of(const DigitSums& sums) {
  const __m256i upper =
      _mm256_add_epi32(_mm256_slli_epi32(sums.high, 16), _mm256_slli_epi32(sums.middle, 8));
  const __m256i half = _mm256_set1_epi32(1 << (kWeightBits - 1));
  return _mm256_srai_epi32(_mm256_add_epi32(_mm256_add_epi32(upper, sums.low), half), kWeightBits);
}

/// Four pixels of two rows in 12 bytes each, as (r0 r1 r2 r3) (g0 …) (b0 …) 0 for either row.
SFTRUN_VNNI inline __m256i pixels_of(const uint8_t* one, const uint8_t* other) {
  const __m256i order = _mm256_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1, 0, 3,
                                         6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1);
  const __m256i both = _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(one))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(other)), 1);
  return _mm256_shuffle_epi8(both, order);
}

/// @param kBytes 4: the fourth byte is overwritten by the next pixel; 3 for the last, behind which is another row's
template <size_t kBytes>
SFTRUN_VNNI inline void put_pixels(__m256i bytes, uint8_t* const* to, int64_t place) {
  const __m128i even = _mm256_castsi256_si128(bytes), odd = _mm256_extracti128_si256(bytes, 1);
  const int32_t pixels[4] = {_mm_cvtsi128_si32(even), _mm_cvtsi128_si32(odd),
                             _mm_extract_epi32(even, 1), _mm_extract_epi32(odd, 1)};
  for (int r = 0; r < 4; ++r) std::memcpy(to[r] + place, &pixels[r], kBytes);
}

SFTRUN_VNNI void resize_rows_at_once(const uint8_t* const* rows, const ResizeWeights& weights,
                                     const FourWeights* fours, uint8_t* const* to) {
  const auto width = static_cast<int64_t>(weights.windows.size());
  for (int64_t x = 0; x < width; ++x, fours += weights.stride / 4) {
    const auto [first, count] = weights.windows[static_cast<size_t>(x)];
    DigitSums upper = no_sums(), lower = no_sums();
    for (int64_t j = 0; j < (count + 3) / 4; ++j) {
      const int64_t place = (first + j * 4) * 3;
      add_products(upper, pixels_of(rows[0] + place, rows[1] + place), fours[j]);
      add_products(lower, pixels_of(rows[2] + place, rows[3] + place), fours[j]);
    }
    const __m256i words = _mm256_packs_epi32(total_of(upper), total_of(lower));
    const __m256i bytes = _mm256_packus_epi16(words, words);
    if (x + 1 < width)
      put_pixels<4>(bytes, to, 3 * x);
    else
      put_pixels<3>(bytes, to, 3 * x);
  }
}

/// 32 bytes of one row: sums over `count` rows, four at a time.
SFTRUN_VNNI void resize_32_columns(ConstRows from, int64_t first, int64_t begin,
                                   const FourWeights* fours, int64_t count, uint8_t* to) {
  DigitSums sums[4] = {no_sums(), no_sums(), no_sums(), no_sums()};
  for (int64_t j = 0; j < count; j += 4) {
    __m256i rows[4];
    for (int64_t r = 0; r < 4; ++r)  // beyond the last row weights are 0
      rows[r] = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(from.row(first + std::min(j + r, count - 1)) + begin));
    const __m256i ab_low = _mm256_unpacklo_epi8(rows[0], rows[1]);
    const __m256i ab_high = _mm256_unpackhi_epi8(rows[0], rows[1]);
    const __m256i cd_low = _mm256_unpacklo_epi8(rows[2], rows[3]);
    const __m256i cd_high = _mm256_unpackhi_epi8(rows[2], rows[3]);
    add_products(sums[0], _mm256_unpacklo_epi16(ab_low, cd_low), fours[j / 4]);
    add_products(sums[1], _mm256_unpackhi_epi16(ab_low, cd_low), fours[j / 4]);
    add_products(sums[2], _mm256_unpacklo_epi16(ab_high, cd_high), fours[j / 4]);
    add_products(sums[3], _mm256_unpackhi_epi16(ab_high, cd_high), fours[j / 4]);
  }
  // Packing undoes the order of unpacking.
  const __m256i lower = _mm256_packs_epi32(total_of(sums[0]), total_of(sums[1]));
  const __m256i upper = _mm256_packs_epi32(total_of(sums[2]), total_of(sums[3]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + begin), _mm256_packus_epi16(lower, upper));
}

bool has_vnni() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

}  // namespace

bool resize_rows_vnni(ConstRows from, int64_t width, int64_t height, const ResizeWeights& weights,
                      Rows to) {
  if (!has_vnni() || !fits_in_digits(weights)) return false;
  std::vector<FourWeights> fours(weights.values.size() / 4);
  for (size_t i = 0; i < fours.size(); ++i) fours[i] = digits_of(weights.values.data() + 4 * i, 4);
  // Copies of the last rows with bytes behind them, which are read and count for nothing.
  const int64_t stride = width * 3 + kReadBehind;
  std::vector<uint8_t> copies(static_cast<size_t>(stride * kRowsAtOnce));
  std::vector<uint8_t> spare(weights.windows.size() * 3);
  for (int64_t y = 0; y < height; y += kRowsAtOnce) {
    const bool needs_copies = (height - y - kRowsAtOnce) * from.stride < kReadBehind;
    const uint8_t* rows[kRowsAtOnce];
    uint8_t* results[kRowsAtOnce];
    for (int64_t r = 0; r < kRowsAtOnce; ++r) {
      uint8_t* copy = copies.data() + r * stride;
      const bool is_there = y + r < height;
      if (is_there && needs_copies)
        std::memcpy(copy, from.row(y + r), static_cast<size_t>(width * 3));
      rows[r] = needs_copies ? copy : from.row(y + r);
      results[r] = is_there ? to.row(y + r) : spare.data();
    }
    resize_rows_at_once(rows, weights, fours.data(), results);
  }
  return true;
}

int64_t resize_columns_vnni(ConstRows from, int64_t first_row, int64_t bytes,
                            const ResizeWeights& weights, Rows to) {
  if (!has_vnni() || !fits_in_digits(weights)) return 0;
  const int64_t done = bytes / 32 * 32;
  std::vector<FourWeights> fours(static_cast<size_t>((weights.stride + 3) / 4));
  for (size_t i = 0; i < weights.windows.size(); ++i) {
    const auto [first, count] = weights.windows[i];
    const int32_t* weight = weights.of(static_cast<int64_t>(i));
    for (size_t j = 0; j < fours.size(); ++j)
      fours[j] = digits_of(weight + 4 * j, count - static_cast<int64_t>(4 * j));
    for (int64_t begin = 0; begin < done; begin += 32)
      resize_32_columns(from, first - first_row, begin, fours.data(), count,
                        to.row(static_cast<int64_t>(i)));
  }
  return done;
}
#else
bool resize_rows_vnni(ConstRows, int64_t, int64_t, const ResizeWeights&, Rows) {
  return false;
}
int64_t resize_columns_vnni(ConstRows, int64_t, int64_t, const ResizeWeights&, Rows) {
  return 0;
}
#endif

}  // namespace sftrun::images
