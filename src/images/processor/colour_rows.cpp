#include "colour_rows.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define SFTRUN_AVX2_FMA __attribute__((target("avx2,fma")))
#endif

namespace sftrun::images {

namespace {

void look_up_row(const ColourTable& table, const uint8_t* from, int64_t count, float* red,
                 float* green, float* blue) {
  for (int64_t x = 0; x < count; ++x, from += 3) {
    red[x] = table[0][from[0]];
    green[x] = table[1][from[1]];
    blue[x] = table[2][from[2]];
  }
}

#if defined(__x86_64__)
constexpr int64_t kPixelsTogether = 16;

/// The formula of a channel in each lane.
struct WideFormula {
  __m256 high, low, mean, std, inverse;
};

SFTRUN_AVX2_FMA inline WideFormula widened(const ColourFormula& formula) {
  return {_mm256_set1_ps(formula.high), _mm256_set1_ps(formula.low), _mm256_set1_ps(formula.mean),
          _mm256_set1_ps(formula.std), _mm256_set1_ps(1 / formula.std)};
}

SFTRUN_AVX2_FMA inline __m256 computed(const WideFormula& formula, __m256i levels) {
  const __m256 x = _mm256_cvtepi32_ps(levels);
  const __m256 scaled = _mm256_fmadd_ps(x, formula.high, _mm256_mul_ps(x, formula.low));
  const __m256 n = _mm256_sub_ps(scaled, formula.mean);
  const __m256 quotient = _mm256_mul_ps(n, formula.inverse);
  const __m256 remainder = _mm256_fnmadd_ps(quotient, formula.std, n);
  return _mm256_fmadd_ps(remainder, formula.inverse, quotient);
}

/// 16 levels of one channel.
SFTRUN_AVX2_FMA inline void write_16(const WideFormula& formula, __m128i levels, float* to) {
  _mm256_storeu_ps(to, computed(formula, _mm256_cvtepu8_epi32(levels)));
  _mm256_storeu_ps(to + 8, computed(formula, _mm256_cvtepu8_epi32(_mm_srli_si128(levels, 8))));
}

/// Where the bytes of a channel of 16 pixels are in a part of 16 of their 48 bytes; -1: in another part.
constexpr std::array<int8_t, 16> places_of(int channel, int part) {
  std::array<int8_t, 16> places{};
  for (int i = 0; i < 16; ++i) {
    const int place = 3 * i + channel - 16 * part;
    places[static_cast<size_t>(i)] = static_cast<int8_t>(place >= 0 && place < 16 ? place : -1);
  }
  return places;
}

template <int kChannel, int kPart>
SFTRUN_AVX2_FMA inline __m128i taken_from(const __m128i* parts) {
  alignas(16) static constexpr std::array<int8_t, 16> kPlaces = places_of(kChannel, kPart);
  return _mm_shuffle_epi8(parts[kPart],
                          _mm_load_si128(reinterpret_cast<const __m128i*>(kPlaces.data())));
}

template <int kChannel>
SFTRUN_AVX2_FMA inline __m128i channel_of(const __m128i* parts) {
  return _mm_or_si128(_mm_or_si128(taken_from<kChannel, 0>(parts), taken_from<kChannel, 1>(parts)),
                      taken_from<kChannel, 2>(parts));
}

/// @return how many pixels are done: a multiple of 16
SFTRUN_AVX2_FMA int64_t compute_row(const std::array<ColourFormula, 3>& formulas,
                                    const uint8_t* from, int64_t count, float* red, float* green,
                                    float* blue) {
  const WideFormula wide[3] = {widened(formulas[0]), widened(formulas[1]), widened(formulas[2])};
  int64_t x = 0;
  for (; x + kPixelsTogether <= count; x += kPixelsTogether) {
    __m128i parts[3];
    std::memcpy(parts, from + 3 * x, sizeof(parts));
    write_16(wide[0], channel_of<0>(parts), red + x);
    write_16(wide[1], channel_of<1>(parts), green + x);
    write_16(wide[2], channel_of<2>(parts), blue + x);
  }
  return x;
}

bool gives_table(const std::array<ColourFormula, 3>& formulas, const ColourTable& table) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
  std::array<uint8_t, 3 * 256> levels;
  for (size_t i = 0; i < levels.size(); ++i) levels[i] = static_cast<uint8_t>(i / 3);
  ColourTable given;
  compute_row(formulas, levels.data(), 256, given[0].data(), given[1].data(), given[2].data());
  return std::memcmp(&given, &table, sizeof(given)) == 0;
}
#else
int64_t compute_row(const std::array<ColourFormula, 3>&, const uint8_t*, int64_t, float*, float*,
                    float*) {
  return 0;
}
bool gives_table(const std::array<ColourFormula, 3>&, const ColourTable&) {
  return false;
}
#endif

}  // namespace

ColourRows::ColourRows(const ColourTable& table, const std::array<ColourFormula, 3>& formulas)
    : table_(table), formulas_(formulas), computes_(gives_table(formulas, table)) {}

void ColourRows::write(const uint8_t* from, int64_t count, float* red, float* green,
                       float* blue) const {
  const int64_t done = computes_ ? compute_row(formulas_, from, count, red, green, blue) : 0;
  look_up_row(table_, from + 3 * done, count - done, red + done, green + done, blue + done);
}

}  // namespace sftrun::images
