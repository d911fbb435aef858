#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "resize_passes.h"
#include "weight_digits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define SFTRUN_VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")))
#endif

namespace sftrun::images {

#if defined(__x86_64__)
namespace {

constexpr int64_t kPixelsOfAGroup = 16;
/// Bytes that one permutation chooses from.
constexpr int64_t kBytesOfASource = 64;
/// Values of a window that a group has room for: bicubic filters of images that become larger have four, Lanczos six.
constexpr int64_t kMostFours = 2;
/// Sources of the last groups begin within a row and end behind it.
constexpr int64_t kReadBehindSource = kBytesOfASource + 3;

/// What 16 neighbouring pixels of the result are made of: four neighbouring values of a channel a pixel and `four`. Channels c = 0, 1, 2 begin a byte later each.
struct alignas(64) PixelGroup {
  struct alignas(64) Four {
    uint8_t places[64];  ///< of bytes in the source: [pixel, value]
    int32_t high[16], middle[16], low[16];
  };
  Four fours[kMostFours];
  int64_t first = 0;  ///< pixel of the source
};

/// @return false if the windows of a group reach further than a source does
bool fill_group(const ResizeWeights& weights, int64_t begin, int64_t fours, PixelGroup& group) {
  const auto width = static_cast<int64_t>(weights.windows.size());
  group.first = weights.windows[static_cast<size_t>(begin)].first;
  for (int64_t pixel = 0; pixel < kPixelsOfAGroup; ++pixel) {
    // Beyond the last pixel it is repeated.
    const int64_t x = std::min(begin + pixel, width - 1);
    const auto [first, count] = weights.windows[static_cast<size_t>(x)];
    for (int64_t j = 0; j < fours; ++j) {
      PixelGroup::Four& four = group.fours[j];
      for (int64_t value = 0; value < 4; ++value) {
        // Values behind a window have weights of 0 and may be any.
        const int64_t of_window = std::min(4 * j + value, count - 1);
        const int64_t place = 3 * (first + of_window - group.first);
        if (place < 0 || place >= kBytesOfASource) return false;
        four.places[4 * pixel + value] = static_cast<uint8_t>(place);
      }
      const FourWeights digits = digits_of(weights.of(x) + 4 * j, count - 4 * j);
      four.high[pixel] = digits.high;
      four.middle[pixel] = digits.middle;
      four.low[pixel] = digits.low;
    }
  }
  return true;
}

/// As many groups as the result needs; none if windows are too long or too far from each other.
std::vector<PixelGroup> groups_of(const ResizeWeights& weights, int64_t fours) {
  const auto width = static_cast<int64_t>(weights.windows.size());
  std::vector<PixelGroup> groups(
      static_cast<size_t>((width + kPixelsOfAGroup - 1) / kPixelsOfAGroup));
  for (size_t i = 0; i < groups.size(); ++i)
    if (!fill_group(weights, static_cast<int64_t>(i) * kPixelsOfAGroup, fours, groups[i]))
      return {};
  return groups;
}

/// Sums of one channel of 16 pixels, rounded, without the fractional bits; not yet clipped. Digits are added as Horner's rule does.
template <int64_t kFours>
SFTRUN_VBMI inline __m512i sums_of(const PixelGroup& group, const uint8_t* from) {
  const __m512i source = _mm512_loadu_si512(from);
  __m512i values[kFours];
  for (int64_t j = 0; j < kFours; ++j)
    values[j] = _mm512_permutexvar_epi8(_mm512_load_si512(group.fours[j].places), source);
  __m512i sums = _mm512_set1_epi32(kHalfOfHighDigits);
  for (int64_t j = 0; j < kFours; ++j)
    sums = _mm512_dpbusd_epi32(sums, values[j], _mm512_load_si512(group.fours[j].high));
  sums = _mm512_slli_epi32(sums, 8);
  for (int64_t j = 0; j < kFours; ++j)
    sums = _mm512_dpbusd_epi32(sums, values[j], _mm512_load_si512(group.fours[j].middle));
  sums = _mm512_slli_epi32(sums, 8);
  for (int64_t j = 0; j < kFours; ++j)
    sums = _mm512_dpbusd_epi32(sums, values[j], _mm512_load_si512(group.fours[j].low));
  return _mm512_srai_epi32(sums, kWeightBits);
}

/// Where the 48 bytes of 16 pixels are among packed sums: each 16 bytes have four pixels' red, green, and twice blue.
struct PackedPlaces {
  alignas(64) uint8_t of[64] = {};
  constexpr PackedPlaces() {
    for (int i = 0; i < 48; ++i) {
      const int pixel = i / 3, channel = i % 3;
      of[i] = static_cast<uint8_t>(pixel / 4 * 16 + channel * 4 + pixel % 4);
    }
  }
};

template <int64_t kFours>
SFTRUN_VBMI inline __m512i pixels_of_group(const PixelGroup& group, const uint8_t* row) {
  static constexpr PackedPlaces kPlaces;
  const uint8_t* from = row + group.first * 3;
  const __m512i red = sums_of<kFours>(group, from), green = sums_of<kFours>(group, from + 1);
  const __m512i blue = sums_of<kFours>(group, from + 2);
  const __m512i bytes =
      _mm512_packus_epi16(_mm512_packs_epi32(red, green), _mm512_packs_epi32(blue, blue));
  return _mm512_permutexvar_epi8(_mm512_load_si512(kPlaces.of), bytes);
}

/// Groups are written from the first on, so that the 16 bytes behind one are the next one's.
template <int64_t kFours>
SFTRUN_VBMI void resize_groups(const std::vector<PixelGroup>& groups, int64_t width, int64_t count,
                               const uint8_t* const* rows, uint8_t* const* to) {
  const auto stored_whole = std::max<int64_t>(width * 3 - kBytesOfASource, -1);
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto place = static_cast<int64_t>(i) * kPixelsOfAGroup * 3;
    for (int64_t r = 0; r < count; ++r) {
      const __m512i pixels = pixels_of_group<kFours>(groups[i], rows[r]);
      if (place <= stored_whole) {
        _mm512_storeu_si512(to[r] + place, pixels);
      } else {
        alignas(64) uint8_t bytes[kBytesOfASource];
        _mm512_store_si512(bytes, pixels);
        std::memcpy(to[r] + place, bytes,
                    static_cast<size_t>(std::min(kPixelsOfAGroup * 3, width * 3 - place)));
      }
    }
  }
}

bool has_vbmi() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
}

class RowPassVbmi final : public RowPass {
 public:
  RowPassVbmi(std::vector<PixelGroup> groups, size_t width_after, int64_t fours)
      : RowPass(width_after, kReadBehindSource),
        groups_(std::move(groups)),
        width_(static_cast<int64_t>(width_after)),
        resize_(fours > 1 ? resize_groups<2> : resize_groups<1>) {}

 private:
  void run_four(const uint8_t* const* rows, uint8_t* const* to) const override {
    resize_(groups_, width_, kRowsAtOnce, rows, to);
  }

  std::vector<PixelGroup> groups_;
  int64_t width_;
  decltype(&resize_groups<1>) resize_;
};

}  // namespace

std::unique_ptr<RowPass> row_pass_vbmi(const ResizeWeights& weights) {
  if (!has_vbmi() || !fits_in_digits(weights)) return nullptr;
  int64_t most = 0;
  for (const ResizeWeights::Window& window : weights.windows) most = std::max(most, window.count);
  const int64_t fours = (most + 3) / 4;
  if (fours > kMostFours) return nullptr;
  std::vector<PixelGroup> groups = groups_of(weights, fours);
  if (groups.empty()) return nullptr;
  return std::make_unique<RowPassVbmi>(std::move(groups), weights.windows.size(), fours);
}
#else
std::unique_ptr<RowPass> row_pass_vbmi(const ResizeWeights&) {
  return nullptr;
}
#endif

}  // namespace sftrun::images
