// 4-bit formats with one absmax per block (include/sftrun/kernels/quant.h).

/// Quantises whole blocks: code = order[number of the 15 ascending `bounds` below value / absmax]
/// (`order` because the value table need not be ascending). n is a multiple of block_size.
inline void quantize_4bit(const float* values, int64_t n, int64_t block_size, const float* bounds,
                          const uint8_t* order, uint8_t* packed, float* absmax) {
  constexpr int64_t kPart = 64;
  for (int64_t block = 0; block < n / block_size; ++block) {
    const float* block_values = values + block * block_size;
    float largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < block_size; ++i) {
      const float magnitude = block_values[i] < 0 ? -block_values[i] : block_values[i];
      largest = magnitude > largest ? magnitude : largest;
    }
    absmax[block] = largest;
    const float inverse = 1.0F / (largest > 1e-38F ? largest : 1e-38F);
    for (int64_t first = 0; first < block_size; first += kPart) {
      const int64_t count = block_size - first < kPart ? block_size - first : kPart;
      int32_t codes[kPart];
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        float scaled = block_values[first + i] * inverse;
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
/// Values of all 16 codes of a block.   @pre scale is finite
inline __m512 values_of_codes(const float* table, float scale, const float* /*out*/) {
  return _mm512_mul_ps(_mm512_loadu_ps(table), _mm512_set1_ps(scale));
}
/// The same rounded to bf16, stored twice, as the lookup takes 5-bit indices.
inline __m512i values_of_codes(const float* table, float scale, const uint16_t* /*out*/) {
  const __m512 values = _mm512_mul_ps(_mm512_loadu_ps(table), _mm512_set1_ps(scale));
  return high_halves(finite_to_bf16(values), finite_to_bf16(values));
}

/// Thirty-two values from 16 bytes, the high nibble first. Each lane's code is in its low 4 bits;
/// the lookup ignores higher bits.
inline void store_values(const uint8_t* packed, __m512 values, float* out) {
  const __m512i words = _mm512_broadcast_i32x4(
                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed))),
                shifts =
                    _mm512_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24);
  const auto look_up_words = [&](__m512i of_lanes) {
    const __m512i codes = _mm512_srlv_epi32(_mm512_permutexvar_epi32(of_lanes, words), shifts);
    return _mm512_permutexvar_ps(codes, values);
  };
  store_thirty_two(
      out, look_up_words(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)),
      look_up_words(_mm512_setr_epi32(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3)));
}
inline void store_values(const uint8_t* packed, __m512i values, uint16_t* out) {
  const __m512i bytes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
  const __m512i codes = _mm512_or_si512(_mm512_srli_epi32(bytes, 4), _mm512_slli_epi32(bytes, 16));
  _mm512_storeu_si512(out, _mm512_permutexvar_epi16(codes, values));
}
#elif defined(__AVX2__)
struct ValuesOfCodes {
  const float* table;
  Sixteen scale;
};
/// @pre scale is finite
template <typename T>
ValuesOfCodes values_of_codes(const float* table, float scale, const T* /*out*/) {
  return {table, all(scale)};
}
/// Thirty-two values from 16 bytes, the high nibble first.
template <typename T>
void store_values(const uint8_t* packed, const ValuesOfCodes& values, T* out) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)),
                mask = _mm_set1_epi8(15);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask),
                low = _mm_and_si128(bytes, mask);
  store_finite(out, look_up(values.table, _mm_unpacklo_epi8(high, low)) * values.scale,
               look_up(values.table, _mm_unpackhi_epi8(high, low)) * values.scale);
}
#endif

/// Values [first, first + n) of the matrix. absmax[0] belongs to the block that contains `first`.
template <typename T>
void dequantize_4bit(const uint8_t* packed, int64_t first, int64_t n, int64_t block_size,
                     const float* table, const float* absmax, T* out) {
  const int64_t first_block = first / block_size, end = first + n;
  for (int64_t i = first, block = first_block; i < end; ++block) {
    const int64_t stop = std::min((block + 1) * block_size, end);
    const float scale = absmax[block - first_block];
    const auto one = [&] {
      const uint8_t byte = packed[i / 2];
      store(out + (i - first), table[i % 2 == 0 ? byte >> 4 : byte & 0x0f] * scale);
      ++i;
    };
    if (i % 2 != 0) one();
#ifdef __AVX2__
    if (std::abs(scale) <= std::numeric_limits<float>::max()) {
      const auto values = values_of_codes(table, scale, out);
      for (; i + 32 <= stop; i += 32) store_values(packed + i / 2, values, out + (i - first));
    }
#endif
    while (i < stop) one();
  }
}
