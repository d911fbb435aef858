template <typename T>
void swiglu_forward(const T* gate, const T* up, T* h, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = load(gate + i);
    store(h + i, g * sigmoid_fast(g) * load(up + i));
  }
}

template <typename T>
void swiglu_backward(const T* dh, T* gate, T* up, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = load(gate + i), u = load(up + i), d = load(dh + i);
    const float s = sigmoid_fast(g);
    store(gate + i, d * u * s * (1.0F + g * (1.0F - s)));
    store(up + i, d * g * s);
  }
}
