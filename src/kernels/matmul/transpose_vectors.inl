#ifdef __AVX512F__
/// Transposes 16 x 16 elements of 4 bytes.
inline void transpose_vectors(__m512i (&a)[16]) {
  __m512i b[16];
  for (int i = 0; i < 8; ++i) {
    b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
    a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
    a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
    a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
    b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
    b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
    b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88);
    a[i + 8] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd);
    a[i + 4] = _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88);
    a[i + 12] = _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd);
  }
}
#elif defined(__AVX2__)
/// Transposes 8 x 8 elements of 4 bytes.
inline void transpose_vectors(__m256 (&a)[8]) {
  __m256 b[8];
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    a[4 * i] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0x44);
    a[4 * i + 1] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0xee);
    a[4 * i + 2] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0x44);
    a[4 * i + 3] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
    b[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) a[i] = b[i];
}
#endif
