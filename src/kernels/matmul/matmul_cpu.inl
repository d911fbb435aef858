// Packing and epilogue of tiled products, and products with one thin side.
// A panel is [depth][width]; in bf16, in VNNI layout, [depth / 2][width][2]. Columns past `valid`
// are zero.

/// Packs w [depth][columns], row stride `stride`.
inline void pack_panel(const float* w, int64_t stride, int64_t valid, int64_t width, int64_t depth,
                       float* panel) {
  for (int64_t k = 0; k < depth; ++k) {
    __builtin_memcpy(panel + k * width, w + k * stride, static_cast<size_t>(valid) * sizeof(float));
    for (int64_t c = valid; c < width; ++c) panel[k * width + c] = 0;
  }
}
inline void pack_panel(const uint16_t* w, int64_t stride, int64_t valid, int64_t width,
                       int64_t depth, uint16_t* panel) {
  for (int64_t k = 0; k < depth; k += 2) {
    const uint16_t* first = w + k * stride;
    const uint16_t* second = first + stride;
    uint16_t* to = panel + k * width;
#pragma omp simd
    for (int64_t c = 0; c < valid; ++c) {
      to[2 * c] = first[c];
      to[2 * c + 1] = second[c];
    }
    for (int64_t c = 2 * valid; c < 2 * width; ++c) to[c] = 0;
  }
}

/// to[k][c] = from[c][k] for 16 x 16 elements of 4 bytes.
template <typename Element>
void transpose_square(const Element (&from)[16][16], Element* to, int64_t stride) {
#ifdef __AVX512F__
  __m512i rows[16];
  for (int i = 0; i < 16; ++i) rows[i] = _mm512_loadu_si512(from[i]);
  transpose_vectors(rows);
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * stride, rows[i]);
#elif defined(__AVX2__)
  for (int64_t part = 0; part < 4; ++part) {
    const int64_t c = part / 2 * 8, k = part % 2 * 8;
    __m256 rows[8];
    for (int i = 0; i < 8; ++i)
      rows[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(&from[c + i][k]));
    transpose_vectors(rows);
    for (int i = 0; i < 8; ++i)
      _mm256_storeu_ps(reinterpret_cast<float*>(to + (k + i) * stride + c), rows[i]);
  }
#else
  for (int64_t k = 0; k < 16; ++k) {
    for (int64_t c = 0; c < 16; ++c) to[k * stride + c] = from[c][k];
  }
#endif
}

/// Packs w [columns][depth], row stride `stride`, transposed in squares that fit the registers.
/// Element is the unit that moves: a float or a pair of bf16.
template <typename Element, typename T>
void transpose_panel(const T* w, int64_t stride, int64_t valid, int64_t width, int64_t depth,
                     Element* panel) {
  constexpr int64_t kSquare = 16, kParts = static_cast<int64_t>(sizeof(Element) / sizeof(T));
  const int64_t elements = depth / kParts;
  Element square[kSquare][kSquare], transposed[kSquare * kSquare];
  for (int64_t c0 = 0; c0 < width; c0 += kSquare) {
    for (int64_t k0 = 0; k0 < elements; k0 += kSquare) {
      const int64_t rows = elements - k0 < kSquare ? elements - k0 : kSquare;
      for (int64_t c = 0; c < kSquare; ++c) {
        if (c0 + c < valid && rows == kSquare)  // constant length: compiles to a register move
          __builtin_memcpy(square[c], w + (c0 + c) * stride + k0 * kParts, sizeof(square[c]));
        else if (c0 + c < valid)
          __builtin_memcpy(square[c], w + (c0 + c) * stride + k0 * kParts,
                           static_cast<size_t>(rows) * sizeof(Element));
        else
          __builtin_memset(square[c], 0, sizeof(square[c]));
      }
      Element* to = panel + k0 * width + c0;
      if (rows == kSquare) {
        transpose_square(square, to, width);
        continue;
      }
      transpose_square(square, transposed, kSquare);
      for (int64_t k = 0; k < rows; ++k)
        __builtin_memcpy(to + k * width, transposed + k * kSquare, sizeof(square[0]));
    }
  }
}
inline void pack_panel_transposed(const float* w, int64_t stride, int64_t valid, int64_t width,
                                  int64_t depth, float* panel) {
  transpose_panel(w, stride, valid, width, depth, panel);
}
inline void pack_panel_transposed(const uint16_t* w, int64_t stride, int64_t valid, int64_t width,
                                  int64_t depth, uint16_t* panel) {
  transpose_panel(w, stride, valid, width, depth, reinterpret_cast<uint32_t*>(panel));
}

/// out = acc + residual + bias, rounded once. Residual and bias may be null.
template <typename T>
void finish_product(const float* acc, int64_t width, int64_t rows, int64_t columns,
                    const T* residual, const T* bias, T* out, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = acc + r * width;
    T* to = out + r * stride;
    if (residual == nullptr && bias == nullptr) {
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) store(to + c, from[c]);
    } else if (bias == nullptr) {
      const T* beside = residual + r * stride;
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) store(to + c, from[c] + load(beside + c));
    } else {
      for (int64_t c = 0; c < columns; ++c) {
        const float beside = residual == nullptr ? 0.0F : load(residual + r * stride + c);
        store(to + c, from[c] + load(bias + c) + beside);
      }
    }
  }
}

/// out[i * out_thin_stride + c * out_wide_stride] += sum over rows of thin[row][i] * wide[row][c],
/// for i < thin_columns and c < wide_columns. Rows are summed in blocks, for accuracy and caching.
template <typename T>
void add_thin_product(const T* thin, int64_t thin_stride, int64_t thin_columns, const T* wide,
                      int64_t wide_stride, int64_t wide_columns, int64_t rows, float* out,
                      int64_t out_thin_stride, int64_t out_wide_stride) {
  constexpr int64_t kRowBlock = 256, kWide = 32, kThin = 4;
  for (int64_t row0 = 0; row0 < rows; row0 += kRowBlock) {
    const int64_t end = row0 + kRowBlock < rows ? row0 + kRowBlock : rows;
    for (int64_t c0 = 0; c0 < wide_columns; c0 += kWide) {
      const int64_t columns = wide_columns - c0 < kWide ? wide_columns - c0 : kWide;
      for (int64_t i0 = 0; i0 < thin_columns; i0 += kThin) {
        const int64_t count = thin_columns - i0 < kThin ? thin_columns - i0 : kThin;
        float acc[kThin][kWide] = {};
        if (columns == kWide && count == kThin) {
          for (int64_t row = row0; row < end; ++row) {
            const T* x = wide + row * wide_stride + c0;
            const T* y = thin + row * thin_stride + i0;
            const float y0 = load(y), y1 = load(y + 1), y2 = load(y + 2), y3 = load(y + 3);
#pragma omp simd
            for (int64_t c = 0; c < kWide; ++c) {
              const float value = load(x + c);
              acc[0][c] += y0 * value;
              acc[1][c] += y1 * value;
              acc[2][c] += y2 * value;
              acc[3][c] += y3 * value;
            }
          }
        } else {
          for (int64_t row = row0; row < end; ++row) {
            for (int64_t i = 0; i < count; ++i) {
              const float y = load(thin + row * thin_stride + i0 + i);
              for (int64_t c = 0; c < columns; ++c)
                acc[i][c] += y * load(wide + row * wide_stride + c0 + c);
            }
          }
        }
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t c = 0; c < columns; ++c)
            out[(i0 + i) * out_thin_stride + (c0 + c) * out_wide_stride] += acc[i][c];
        }
      }
    }
  }
}
