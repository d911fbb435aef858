inline double sum_of_squares(const float* x, int64_t n) {
  double total = 0;
  constexpr int64_t kBlock = 1024;  // fp32 within a block, fp64 across blocks
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = first + kBlock < n ? first + kBlock : n;
    float block = 0;
#pragma omp simd reduction(+ : block)
    for (int64_t i = first; i < end; ++i) block += x[i] * x[i];
    total += static_cast<double>(block);
  }
  return total;
}
