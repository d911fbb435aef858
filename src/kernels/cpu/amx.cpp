// Compiled for AMX and AVX-512 with bf16 instructions, which every processor with AMX has.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "matmul/amx_tiles.h"

namespace sftrun::kernels::isa_amx {
namespace {

#include "cpu/math.h"
#include "matmul/transpose_vectors.inl"

constexpr int64_t kVector = 16;  // of 4-byte elements
constexpr int64_t kPart = kTileRows * kTileDepth;

inline __mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>((1U << std::clamp<int64_t>(count, 0, kVector)) - 1);
}
inline __mmask32 first_halves(int64_t count) {
  return static_cast<__mmask32>((uint64_t{1} << std::clamp<int64_t>(count, 0, 2 * kVector)) - 1);
}

/// Splits sixteen fp32 values into bf16 parts; each part is in the upper halves of its elements.
class Parts {
 public:
  explicit Parts(__m512 values) : rest_(values) {}
  /// Rounds to nearest, so that the remainder is small and signed; the last part is exact.
  __m512i next() {
    const __m512i rounded =
        _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(rest_), _mm512_set1_epi32(0x8000)),
                         _mm512_set1_epi32(static_cast<int>(0xffff0000U)));
    rest_ = _mm512_sub_ps(rest_, _mm512_castsi512_ps(rounded));
    return rounded;
  }

 private:
  __m512 rest_;
};

/// One row of a depth step, up to 32 values: one bf16 vector per part.
inline void parts_of_row(const float* x, int64_t count, __m512i (&parts)[3]) {
  Parts low(_mm512_maskz_loadu_ps(first_lanes(count), x)),
      high(_mm512_maskz_loadu_ps(first_lanes(count - kVector), x + kVector));
  for (__m512i& part : parts) {
    const __m512i of_low = low.next();
    part = high_halves(of_low, high.next());
  }
}
inline void parts_of_row(const uint16_t* x, int64_t count, __m512i (&parts)[1]) {
  parts[0] = _mm512_maskz_loadu_epi16(first_halves(count), x);
}

template <typename T>
void pack_strip(const T* x, int64_t stride, int64_t rows, int64_t depth, uint16_t* strip) {
  for (int64_t k = 0; k < depth; k += kTileDepth, strip += kTileStep<T>) {
    for (int64_t row = 0; row < kTileRows; ++row) {
      __m512i parts[kTileParts<T>] = {};
      if (row < rows) parts_of_row(x + row * stride + k, depth - k, parts);
      for (int64_t p = 0; p < kTileParts<T>; ++p)
        _mm512_store_si512(strip + p * kPart + row * kTileDepth, parts[p]);
    }
  }
}

/// Interleaves two rows of 32 columns (VNNI layout): 16 columns in each of two vectors.
inline void pair_rows(const uint16_t* first, const uint16_t* second, int64_t columns,
                      uint16_t* to) {
  const __m512i indices =
      _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                       37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i beyond = _mm512_add_epi16(indices, _mm512_set1_epi16(kVector));
  const __mmask32 valid = first_halves(columns);
  const __m512i a = first == nullptr ? __m512i{} : _mm512_maskz_loadu_epi16(valid, first),
                b = second == nullptr ? __m512i{} : _mm512_maskz_loadu_epi16(valid, second);
  _mm512_store_si512(to, _mm512_permutex2var_epi16(a, indices, b));
  _mm512_store_si512(to + 2 * kVector, _mm512_permutex2var_epi16(a, beyond, b));
}
inline void pair_rows(const float* first, const float* second, int64_t columns, uint16_t* to) {
  for (int64_t c = 0; c < kTileColumns; c += kVector) {
    const __mmask16 valid = first_lanes(columns - c);
    Parts a(first == nullptr ? __m512{} : _mm512_maskz_loadu_ps(valid, first + c)),
        b(second == nullptr ? __m512{} : _mm512_maskz_loadu_ps(valid, second + c));
    for (int64_t p = 0; p < kTileParts<float>; ++p) {
      const __m512i of_a = _mm512_srli_epi32(a.next(), 16);
      _mm512_store_si512(to + p * kPart + 2 * c, _mm512_or_si512(of_a, b.next()));
    }
  }
}

template <typename T>
void pack_panel(const T* w, int64_t stride, int64_t columns, int64_t depth, uint16_t* panel) {
  const int64_t end = tile_steps(depth) * kTileDepth;
  for (int64_t k = 0; k < end; k += 2) {
    pair_rows(k < depth ? w + k * stride : nullptr, k + 1 < depth ? w + (k + 1) * stride : nullptr,
              columns, panel + k / kTileDepth * kTileStep<T> + k % kTileDepth * kTileColumns);
  }
}

template <typename T>
void pack_panel_transposed(const T* w, int64_t stride, int64_t columns, int64_t depth,
                           uint16_t* panel) {
  const int64_t steps = tile_steps(depth);
  for (int64_t step = 0; step < steps; ++step, panel += kTileStep<T>) {
    for (int64_t first = 0; first < kTileColumns; first += kVector) {
      __m512i squares[kTileParts<T>][kVector] = {};
      for (int64_t c = 0; c < std::min(kVector, columns - first); ++c) {
        __m512i parts[kTileParts<T>];
        parts_of_row(w + (first + c) * stride + step * kTileDepth, depth - step * kTileDepth,
                     parts);
        for (int64_t p = 0; p < kTileParts<T>; ++p) squares[p][c] = parts[p];
      }
      for (int64_t p = 0; p < kTileParts<T>; ++p) {
        transpose_vectors(squares[p]);
        for (int64_t pair = 0; pair < kVector; ++pair) {
          _mm512_store_si512(panel + p * kPart + (pair * kTileColumns + first) * 2,
                             squares[p][pair]);
        }
      }
    }
  }
}

// Tiles 0 to 3 are the accumulators, two by two; 4 and 5 hold the strip's halves, 6 and 7 the
// panel's.
void load_strip(const uint16_t* part) {
  _tile_loadd(4, part, 64);
  _tile_loadd(5, part + kPart / 2, 64);
}
// With at most 16 columns in use (kFew), tiles 1, 3 and 7 are left out.
template <bool kFew>
void load_panel(const uint16_t* part) {
  _tile_loadd(6, part, 128);
  if constexpr (!kFew) _tile_loadd(7, part + 2 * kVector, 128);
}
template <bool kFew>
void add_products() {
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (!kFew) _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  if constexpr (!kFew) _tile_dpbf16ps(3, 5, 7);
}

/// Prefetches cache lines [16 i, 16 i + 16) of the next step from L2 to L1.
inline void fetch_lines(const uint16_t* step, int64_t i) {
  constexpr int64_t kLine = 32, kLines = 16;
  for (int64_t line = 0; line < kLines; ++line)
    _mm_prefetch(step + (i * kLines + line) * kLine, _MM_HINT_T0);
}

template <typename T, bool kFew>
void add_step(const uint16_t* strip, const uint16_t* panel) {
  if constexpr (kTileParts<T> == 1) {
    load_strip(strip);
    load_panel<kFew>(panel);
    add_products<kFew>();
  } else {
    const auto add = [&](int64_t i) {
      add_products<kFew>();
      fetch_lines(strip + kTileStep<T>, i);
      fetch_lines(panel + kTileStep<T>, i);
    };
    // Smallest products first; consecutive products share an operand where possible.
    load_strip(strip + 2 * kPart);
    load_panel<kFew>(panel);
    add(0);
    load_strip(strip + kPart);
    add(1);
    load_panel<kFew>(panel + kPart);
    add(2);
    load_strip(strip);
    add(3);
    load_panel<kFew>(panel + 2 * kPart);
    add(4);
    load_panel<kFew>(panel);
    add(5);
  }
}

/// Prefetches a few lines per step: all at once they would delay the loads of the products.
template <typename T>
void fetch(const ComingRows<T>& coming, int64_t step) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t row = 0; row < coming.rows; ++row) {
    const T* x = coming.x + row * coming.stride + step * kTileDepth;
    for (int64_t k = 0; k < kTileDepth; k += kLine) _mm_prefetch(x + k, _MM_HINT_T1);
  }
}

template <typename T, bool kFew>
void multiply(const uint16_t* strip, const uint16_t* panel, int64_t steps, bool add, float* sums,
              int64_t stride, ComingRows<T> coming) {
  const auto bytes = static_cast<size_t>(stride) * sizeof(float);
  float* below = sums + kVector * stride;
  if (add) {
    _tile_loadd(0, sums, bytes);
    if constexpr (!kFew) _tile_loadd(1, sums + kVector, bytes);
    _tile_loadd(2, below, bytes);
    if constexpr (!kFew) _tile_loadd(3, below + kVector, bytes);
  } else {
    _tile_zero(0);
    if constexpr (!kFew) _tile_zero(1);
    _tile_zero(2);
    if constexpr (!kFew) _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; ++step) {
    add_step<T, kFew>(strip + step * kTileStep<T>, panel + step * kTileStep<T>);
    fetch(coming, step);
  }
  _tile_stored(0, sums, bytes);
  if constexpr (!kFew) _tile_stored(1, sums + kVector, bytes);
  _tile_stored(2, below, bytes);
  if constexpr (!kFew) _tile_stored(3, below + kVector, bytes);
}

inline void store_lanes(float* to, __mmask16 lanes, __m512 values) {
  _mm512_mask_storeu_ps(to, lanes, values);
}
inline void store_lanes(uint16_t* to, __mmask16 lanes, __m512 values) {
  _mm512_mask_cvtepi32_storeu_epi16(to, lanes, _mm512_srli_epi32(to_bf16(values), kVector));
}

template <typename T>
void store_turned(const float* sums, int64_t rows, int64_t columns, T* out, int64_t stride) {
  for (int64_t c = 0; c < columns; c += kVector) {
    for (int64_t r = 0; r < rows; r += kVector) {
      __m512i square[kVector];
      for (int64_t i = 0; i < kVector; ++i)
        square[i] = _mm512_loadu_si512(sums + (r + i) * kTileColumns + c);
      transpose_vectors(square);
      for (int64_t i = 0; i < std::min(kVector, columns - c); ++i) {
        store_lanes(out + (c + i) * stride + r, first_lanes(rows - r),
                    _mm512_castsi512_ps(square[i]));
      }
    }
  }
}

/// Eight tiles of 16 rows of 64 bytes (Intel SDM, "tile configuration").
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void begin() {
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
}
void end() {
  _tile_release();
}

template <typename T>
constexpr TileKernels<T> kKernels = {
    pack_strip<T>,      pack_panel<T>,     pack_panel_transposed<T>,
    multiply<T, false>, multiply<T, true>, store_turned<T>};

}  // namespace

extern const TileTable kTable;
const TileTable kTable = {kKernels<float>, kKernels<uint16_t>, begin, end};

}  // namespace sftrun::kernels::isa_amx
