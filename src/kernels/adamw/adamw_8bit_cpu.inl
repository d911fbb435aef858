// The order of operations, and which of them are fused, is that of bitsandbytes'
// backends/cpu/ops.py with LibTorch's operations, so codes and absmax are bit-equal.

inline float fused_multiply_add(float a, float b, float c) {
#ifdef __FMA__
  return __builtin_fmaf(a, b, c);
#else
  // The product is exact in fp64; the sum rounds differently only within 2^-53 of a midpoint.
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b) +
                            static_cast<double>(c));
#endif
}

#ifdef __AVX512BW__
/// values[code] for sixteen 8-bit codes.
inline __m512 sixteen_states(const uint8_t* codes, const float* values) {
  const __m512i indices =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  const auto bit = [&](int value) {
    return _mm512_test_epi32_mask(indices, _mm512_set1_epi32(value));
  };
  const __mmask16 bit5 = bit(32), bit6 = bit(64), bit7 = bit(128);
  const auto of_32 = [&](int part) {
    return _mm512_permutex2var_ps(_mm512_loadu_ps(values + 32 * part), indices,
                                  _mm512_loadu_ps(values + 32 * part + 16));
  };
  const auto of_128 = [&](int part) {
    return _mm512_mask_blend_ps(bit6, _mm512_mask_blend_ps(bit5, of_32(part), of_32(part + 1)),
                                _mm512_mask_blend_ps(bit5, of_32(part + 2), of_32(part + 3)));
  };
  return _mm512_mask_blend_ps(bit7, of_128(0), of_128(4));
}

/// Codes of 32 steps: the number of a map's 255 bounds <= each step, by binary search in `tree`.
inline __m512i codes_of_places(__m512i places, const uint16_t* tree) {
  const auto table = [&](int first) { return _mm512_loadu_si512(tree + first); };
  __m512i code = _mm512_setzero_si512();
  const auto descend = [&](__m512i bounds) {
    const __mmask32 is_above = _mm512_cmpge_epu16_mask(places, bounds);
    const __m512i twice = _mm512_add_epi16(code, code);
    code = _mm512_mask_add_epi16(twice, is_above, twice, _mm512_set1_epi16(1));
  };
  for (int level = 0; level < 6; ++level)
    descend(_mm512_permutexvar_epi16(code, table(32 * level)));
  descend(_mm512_permutex2var_epi16(table(192), code, table(224)));
  descend(_mm512_mask_blend_epi16(_mm512_test_epi16_mask(code, _mm512_set1_epi16(64)),
                                  _mm512_permutex2var_epi16(table(256), code, table(288)),
                                  _mm512_permutex2var_epi16(table(320), code, table(352))));
  return code;
}
#endif

/// A block's moments divided by its absmax.
inline void state_values(const uint8_t* codes, int64_t n, const float* values, float* out) {
  int64_t i = 0;
#ifdef __AVX512BW__
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(out + i, sixteen_states(codes + i, values));
#endif
  for (; i < n; ++i) out[i] = values[codes[i]];
}

/// Codes of a block's values. If all are 0, x is 0 * infinity = NaN, which yields code 0.
inline void state_codes(const float* values, int64_t n, float absmax, const StateMap& map,
                        uint8_t* out) {
  alignas(64) uint16_t place[kStateBlock];
  const float inverse = 1.0F / absmax;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float x = values[i] * inverse, below_one = x < 1.0F ? x : 1.0F;
    const float steps = (below_one + 1.0F) * 0.5F * (kStateSteps - 1) + 0.5F;
    place[i] = static_cast<uint16_t>(x >= -1.0F ? static_cast<int32_t>(steps) : 0);
  }
  int64_t i = 0;
#ifdef __AVX512BW__
  for (; i + 32 <= n; i += 32) {
    const __m512i codes = codes_of_places(_mm512_load_si512(place + i), map.tree);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi16_epi8(codes));
  }
#endif
  for (; i < n; ++i) out[i] = map.codes[place[i]];
}

void adamw_8bit(float* param, const float* grad, const StateBlock& state, uint16_t* compute_copy,
                int64_t n, const StateMap& exp_avg_map, const StateMap& exp_avg_sq_map,
                const AdamW8bitParams& a) {
  alignas(64) float m[kStateBlock], v[kStateBlock];
  state_values(state.exp_avg, n, exp_avg_map.values, m);
  state_values(state.exp_avg_sq, n, exp_avg_sq_map.values, v);
  const float m_scale = *state.exp_avg_absmax, v_scale = *state.exp_avg_sq_absmax;
  float m_largest = 0, v_largest = 0;
#pragma omp simd reduction(max : m_largest, v_largest)
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * a.grad_scale;
    const float mi = fused_multiply_add(a.one_minus_beta1, g, m[i] * m_scale * a.beta1);
    const float vi = fused_multiply_add(a.one_minus_beta2 * g, g, v[i] * v_scale * a.beta2);
    m[i] = mi;
    v[i] = vi;
    const float magnitude = mi < 0 ? -mi : mi;
    m_largest = magnitude > m_largest ? magnitude : m_largest;
    v_largest = vi > v_largest ? vi : v_largest;
    const float denominator = __builtin_sqrtf(vi) / a.sqrt_bias_correction2 + a.epsilon;
    param[i] = param[i] * a.decay + a.step_size * mi / denominator;
  }
  *state.exp_avg_absmax = m_largest;
  *state.exp_avg_sq_absmax = v_largest;
  state_codes(m, n, m_largest, exp_avg_map, state.exp_avg);
  state_codes(v, n, v_largest, exp_avg_sq_map, state.exp_avg_sq);
  if (compute_copy == nullptr) return;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(compute_copy + i, param[i]);
}
