// Four bits a value, in blocks that share a factor (include/sftrun/kernels/quant.h).

/// Codes of values / absmax: how many of the 15 ascending `bounds` lie below, then what `order`
/// makes of that (the table need not ascend). Values go to the blocks of their places; n is a
/// multiple of block_size.
inline void quantize_4bit(const float* values, int64_t n, int64_t block_size, const float* bounds,
                          const uint8_t* order, uint8_t* packed, float* absmax) {
  constexpr int64_t kPart = 64;
  for (int64_t block = 0; block < n / block_size; ++block) {
    const float* of = values + block * block_size;
    float largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < block_size; ++i) {
      const float magnitude = of[i] < 0 ? -of[i] : of[i];
      largest = magnitude > largest ? magnitude : largest;
    }
    absmax[block] = largest;
    const float inverse = 1.0F / (largest > 1e-38F ? largest : 1e-38F);
    for (int64_t first = 0; first < block_size; first += kPart) {
      const int64_t count = block_size - first < kPart ? block_size - first : kPart;
      int32_t codes[kPart];
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        float scaled = of[first + i] * inverse;
        scaled = scaled > 1.0F ? 1.0F : scaled;
        scaled = scaled < -1.0F ? -1.0F : scaled;
        int32_t code = 0;
        for (int b = 0; b < 15; ++b) code += scaled > bounds[b] ? 1 : 0;
        codes[i] = code;
      }
      uint8_t* to = packed + (block * block_size + first) / 2;
      for (int64_t i = 0; i < count; i += 2)
        to[i / 2] = static_cast<uint8_t>(order[codes[i]] << 4 | order[codes[i + 1]]);
    }
  }
}

#ifdef __AVX512F__
/// Sixteen values from the eight bytes at `packed`, the first in the high half of the first.
inline __m512 sixteen_values(const uint8_t* packed, __m512 table) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed));
  const __m128i mask = _mm_set1_epi8(0x0f);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask),
                low = _mm_and_si128(bytes, mask);
  return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(high, low)), table);
}
#endif

/// Values [first, first + n) of the whole. absmax[0] is the factor of the block that `first` is in.
template <typename T>
void dequantize_4bit(const uint8_t* packed, int64_t first, int64_t n, int64_t block_size,
                     const float* table, const float* absmax, T* out) {
  const int64_t first_block = first / block_size, end = first + n;
#ifdef __AVX512F__
  const __m512 values_of = _mm512_loadu_ps(table);
#endif
  for (int64_t i = first; i < end;) {
    const int64_t block = i / block_size,
                  stop = (block + 1) * block_size < end ? (block + 1) * block_size : end;
    const float factor = absmax[block - first_block];
    const auto one = [&] {
      const uint8_t byte = packed[i / 2];
      store(out + (i - first), table[i % 2 == 0 ? byte >> 4 : byte & 0x0f] * factor);
      ++i;
    };
    if (i % 2 != 0) one();
#ifdef __AVX512F__
    for (; i + 16 <= stop; i += 16) {
      store_sixteen(out + (i - first), _mm512_mul_ps(sixteen_values(packed + i / 2, values_of),
                                                     _mm512_set1_ps(factor)));
    }
#endif
    while (i < stop) one();
  }
}

template <typename T>
void widen(const T* x, int64_t n, float* wide) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) wide[i] = load(x + i);
}
