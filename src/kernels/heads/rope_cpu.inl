template <typename T>
void rope(T* x, const float* cos, const float* sin, int64_t rows, int64_t heads, int64_t head_dim,
          int64_t rotary_dim, float sign) {
  const int64_t half = rotary_dim / 2;
  for (int64_t row = 0; row < rows; ++row, cos += half, sin += half) {
    for (int64_t head = 0; head < heads; ++head, x += head_dim) {
      T* low = x;
      T* high = x + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float a = load(low + i), b = load(high + i), s = sign * sin[i];
        store(low + i, a * cos[i] - b * s);
        store(high + i, b * cos[i] + a * s);
      }
    }
  }
}
