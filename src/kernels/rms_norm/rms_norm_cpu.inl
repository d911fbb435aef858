template <typename T>
void rms_norm_forward(const T* x, const T* weight, T* y, float* rstd, int64_t rows, int64_t hidden,
                      float eps, float offset) {
  for (int64_t row = 0; row < rows; ++row, x += hidden, y += hidden) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < hidden; ++i) sum += load(x + i) * load(x + i);
    const float scale = 1.0F / __builtin_sqrtf(sum / static_cast<float>(hidden) + eps);
    rstd[row] = scale;
#pragma omp simd
    for (int64_t i = 0; i < hidden; ++i)
      store(y + i, load(x + i) * scale * (offset + load(weight + i)));
  }
}

template <typename T>
void rms_norm_backward(const T* dy, const T* x, const T* weight, const float* rstd,
                       const T* residual, T* dx, int64_t rows, int64_t hidden, float offset) {
  for (int64_t row = 0; row < rows; ++row, dy += hidden, x += hidden, dx += hidden) {
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < hidden; ++i)
      dot += load(dy + i) * (offset + load(weight + i)) * load(x + i);
    const float scale = rstd[row];
    const float back = dot / static_cast<float>(hidden) * scale * scale;
    const auto value = [&](int64_t i) {
      return scale * (load(dy + i) * (offset + load(weight + i)) - load(x + i) * back);
    };
    if (residual == nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < hidden; ++i) store(dx + i, value(i));
    } else {
      const T* beside = residual + row * hidden;
#pragma omp simd
      for (int64_t i = 0; i < hidden; ++i) store(dx + i, load(beside + i) + value(i));
    }
  }
}
