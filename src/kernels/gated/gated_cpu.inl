// Gated MLP activations (GLU variants, arXiv:2002.05202) and their derivatives.

struct Silu {
  static float value(float x) { return x * sigmoid_fast(x); }
  static float derivative(float x) {
    const float s = sigmoid_fast(x);
    return s * (1.0F + x * (1.0F - s));
  }
};

/// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanh {
  static constexpr float kTwiceRoot = 1.5957691216057308F, kCubic = 0.044715F;  // 2 sqrt(2 / pi)
  static float value(float x) { return x * sigmoid_fast(kTwiceRoot * (x + kCubic * x * x * x)); }
  static float derivative(float x) {
    const float s = sigmoid_fast(kTwiceRoot * (x + kCubic * x * x * x));
    return s + x * s * (1.0F - s) * kTwiceRoot * (1.0F + 3.0F * kCubic * x * x);
  }
};

template <typename A, typename T>
void gated_forward_by(const T* gate, const T* up, T* h, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(h + i, A::value(load(gate + i)) * load(up + i));
}

template <typename A, typename T>
void gated_backward_by(const T* dh, T* gate, T* up, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = load(gate + i), u = load(up + i), d = load(dh + i);
    store(gate + i, d * u * A::derivative(g));
    store(up + i, d * A::value(g));
  }
}

/// NaN stays NaN, as with torch.clamp.
inline float at_most(float x, float limit) {
  return x > limit ? limit : x;
}
inline float within(float x, float limit) {
  return -at_most(-at_most(x, limit), limit);
}

/// gpt-oss: clamped inputs, x sigmoid(alpha x), up + 1. The gradient is 0 where a clamp is active.
template <typename T>
void clamped_forward(Gating gating, const T* gate, const T* up, T* h, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = at_most(load(gate + i), gating.limit), u = within(load(up + i), gating.limit);
    store(h + i, (u + 1.0F) * g * sigmoid_fast(gating.alpha * g));
  }
}

template <typename T>
void clamped_backward(Gating gating, const T* dh, T* gate, T* up, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float whole_g = load(gate + i), whole_u = load(up + i), d = load(dh + i);
    const float g = at_most(whole_g, gating.limit), u = within(whole_u, gating.limit);
    const float s = sigmoid_fast(gating.alpha * g);
    const float slope = s * (1.0F + gating.alpha * g * (1.0F - s));
    store(gate + i, whole_g <= gating.limit ? d * (u + 1.0F) * slope : 0.0F);
    store(up + i, u == whole_u ? d * g * s : 0.0F);
  }
}

template <typename T>
void gated_forward(Gating gating, const T* gate, const T* up, T* h, int64_t n) {
  switch (gating.activation) {
    case Activation::kSilu:
      return gated_forward_by<Silu>(gate, up, h, n);
    case Activation::kGeluTanh:
      return gated_forward_by<GeluTanh>(gate, up, h, n);
    case Activation::kClampedSwiglu:
      return clamped_forward(gating, gate, up, h, n);
  }
}

template <typename T>
void gated_backward(Gating gating, const T* dh, T* gate, T* up, int64_t n) {
  switch (gating.activation) {
    case Activation::kSilu:
      return gated_backward_by<Silu>(dh, gate, up, n);
    case Activation::kGeluTanh:
      return gated_backward_by<GeluTanh>(dh, gate, up, n);
    case Activation::kClampedSwiglu:
      return clamped_backward(gating, dh, gate, up, n);
  }
}
