#include <algorithm>
#include <cstring>

#include "resize_passes.h"
#include "weight_digits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define SFTRUN_VNNI __attribute__((target("avx2,avx512f,avx512vl,avx512vnni")))
#endif

namespace sftrun::images {

#if defined(__x86_64__)
namespace {

// Windows are read in fours of pixels, and a load of 16 bytes begins at each.
constexpr int64_t kReadBehindPixels = 32;

/// Sums of the three digits.
struct DigitSums {
  __m256i high, middle, low;
};

SFTRUN_VNNI inline DigitSums no_sums() {
  return {_mm256_set1_epi32(kHalfOfHighDigits), _mm256_setzero_si256(), _mm256_setzero_si256()};
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
  return _mm256_srai_epi32(_mm256_add_epi32(upper, sums.low), kWeightBits);
}
/// The total of one product: digits are added as Horner's rule does.
SFTRUN_VNNI inline __m256i total_of_four(__m256i values, const FourWeights& weights) {
  __m256i sums = _mm256_dpbusd_epi32(_mm256_set1_epi32(kHalfOfHighDigits), values,
                                     _mm256_set1_epi32(weights.high));
  sums = _mm256_dpbusd_epi32(_mm256_slli_epi32(sums, 8), values, _mm256_set1_epi32(weights.middle));
  sums = _mm256_dpbusd_epi32(_mm256_slli_epi32(sums, 8), values, _mm256_set1_epi32(weights.low));
  return _mm256_srai_epi32(sums, kWeightBits);
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

/// 32 bytes of four rows from `first` on, byte by byte: 4 x 8 columns in the order in which packing puts them together again.
SFTRUN_VNNI inline void read_columns(ConstRows from, int64_t first, int64_t count, int64_t begin,
                                     __m256i* columns) {
  __m256i rows[4];
  for (int64_t r = 0; r < 4; ++r)  // beyond the last row weights are 0
    rows[r] = _mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(from.row(first + std::min(r, count - 1)) + begin));
  const __m256i ab_low = _mm256_unpacklo_epi8(rows[0], rows[1]);
  const __m256i ab_high = _mm256_unpackhi_epi8(rows[0], rows[1]);
  const __m256i cd_low = _mm256_unpacklo_epi8(rows[2], rows[3]);
  const __m256i cd_high = _mm256_unpackhi_epi8(rows[2], rows[3]);
  columns[0] = _mm256_unpacklo_epi16(ab_low, cd_low);
  columns[1] = _mm256_unpackhi_epi16(ab_low, cd_low);
  columns[2] = _mm256_unpacklo_epi16(ab_high, cd_high);
  columns[3] = _mm256_unpackhi_epi16(ab_high, cd_high);
}

SFTRUN_VNNI inline void write_columns(const __m256i* totals, uint8_t* to) {
  const __m256i lower = _mm256_packs_epi32(totals[0], totals[1]);
  const __m256i upper = _mm256_packs_epi32(totals[2], totals[3]);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_packus_epi16(lower, upper));
}

/// `bytes` bytes of one row, a multiple of 32: sums over at most four rows.
SFTRUN_VNNI void resize_columns_of_four(ConstRows from, int64_t first, int64_t count,
                                        const FourWeights& four, int64_t bytes, uint8_t* to) {
  for (int64_t begin = 0; begin < bytes; begin += 32) {
    __m256i columns[4];
    read_columns(from, first, count, begin, columns);
    for (__m256i& column : columns) column = total_of_four(column, four);
    write_columns(columns, to + begin);
  }
}

/// Sums over `count` rows, four at a time.
SFTRUN_VNNI void resize_columns_of_fours(ConstRows from, int64_t first, int64_t count,
                                         const FourWeights* fours, int64_t bytes, uint8_t* to) {
  for (int64_t begin = 0; begin < bytes; begin += 32) {
    DigitSums sums[4] = {no_sums(), no_sums(), no_sums(), no_sums()};
    for (int64_t j = 0; j < count; j += 4) {
      __m256i columns[4];
      read_columns(from, first + j, count - j, begin, columns);
      for (int i = 0; i < 4; ++i) add_products(sums[i], columns[i], fours[j / 4]);
    }
    __m256i totals[4];
    for (int i = 0; i < 4; ++i) totals[i] = total_of(sums[i]);
    write_columns(totals, to + begin);
  }
}

bool has_vnni() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

bool suits_vnni(const ResizeWeights& weights) {
  return has_vnni() && fits_in_digits(weights);
}

class RowPassVnni final : public RowPass {
 public:
  explicit RowPassVnni(const ResizeWeights& weights)
      : RowPass(weights.windows.size(), kReadBehindPixels),
        weights_(weights),
        fours_(weights.values.size() / 4) {
    for (size_t i = 0; i < fours_.size(); ++i)
      fours_[i] = digits_of(weights.values.data() + 4 * i, 4);
  }

 private:
  void run_four(const uint8_t* const* rows, uint8_t* const* to) const override {
    resize_rows_at_once(rows, weights_, fours_.data(), to);
  }

  ResizeWeights weights_;
  std::vector<FourWeights> fours_;
};

}  // namespace

std::unique_ptr<RowPass> row_pass_vnni(const ResizeWeights& weights) {
  return suits_vnni(weights) ? std::make_unique<RowPassVnni>(weights) : nullptr;
}

int64_t resize_columns_vnni(ConstRows from, int64_t first_row, int64_t bytes,
                            const ResizeWeights& weights, Rows to) {
  if (!suits_vnni(weights)) return 0;
  const int64_t done = bytes / 32 * 32;
  std::vector<FourWeights> fours(static_cast<size_t>((weights.stride + 3) / 4));
  for (size_t i = 0; i < weights.windows.size(); ++i) {
    const auto [first, count] = weights.windows[i];
    const int32_t* weight = weights.of(static_cast<int64_t>(i));
    uint8_t* row = to.row(static_cast<int64_t>(i));
    for (size_t j = 0; j < fours.size(); ++j)
      fours[j] = digits_of(weight + 4 * j, count - static_cast<int64_t>(4 * j));
    if (count <= 4)
      resize_columns_of_four(from, first - first_row, count, fours[0], done, row);
    else
      resize_columns_of_fours(from, first - first_row, count, fours.data(), done, row);
  }
  return done;
}
#else
std::unique_ptr<RowPass> row_pass_vnni(const ResizeWeights&) {
  return nullptr;
}
int64_t resize_columns_vnni(ConstRows, int64_t, int64_t, const ResizeWeights&, Rows) {
  return 0;
}
#endif

}  // namespace sftrun::images
