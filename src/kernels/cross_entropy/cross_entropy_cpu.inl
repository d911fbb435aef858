// Logits unchanged, or soft-capped: cap * tanh(logit / cap), recomputed in each pass.
struct PlainLogits {
  float value(float logit) const { return logit; }
  float derivative(float /*value*/) const { return 1.0F; }
};
struct CappedLogits {
  float cap;
  float value(float logit) const { return cap * tanh_fast(logit / cap); }
  float derivative(float value) const { return 1.0F - value / cap * (value / cap); }
};

// Maximum logit and sum of exp(logit - maximum), in two passes over a row that stays in cache.
template <typename T, typename L>
void softmax_statistics(const T* logits, L cap, int64_t vocab, float& largest, float& sum) {
  float top = cap.value(load(logits));
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < vocab; ++i) {
    const float value = cap.value(load(logits + i));
    top = value > top ? value : top;
  }
  // fp32 within a block, fp64 across blocks: in a single fp32 sum many small terms of a large
  // vocabulary would be rounded away, with an error of about 1e-6 in the loss.
  constexpr int64_t kBlock = 256;
  double total = 0;
  for (int64_t first = 0; first < vocab; first += kBlock) {
    const int64_t end = first + kBlock < vocab ? first + kBlock : vocab;
    float block = 0;
#pragma omp simd reduction(+ : block)
    for (int64_t i = first; i < end; ++i) block += exp_fast(cap.value(load(logits + i)) - top);
    total += static_cast<double>(block);
  }
  largest = top;
  sum = static_cast<float>(total);
}

template <typename T, typename L>
float token_loss(const T* logits, L cap, int32_t label, float largest, float sum) {
  // The maximum ignores NaN. A NaN label logit reaches the loss here, and any other through `sum`.
  return largest + __builtin_logf(sum) - cap.value(load(logits + label));
}

template <typename T, typename L>
void cross_entropy_of(T* logits, L cap, const int32_t* labels, float* losses, int64_t rows,
                      int64_t vocab, float grad_scale, const float* row_factors) {
  for (int64_t row = 0; row < rows; ++row, logits += vocab) {
    if (labels[row] < 0) {
      losses[row] = 0;
      for (int64_t i = 0; i < vocab; ++i) store(logits + i, 0.0F);
      continue;
    }
    float largest, sum;
    softmax_statistics(logits, cap, vocab, largest, sum);
    T* label = logits + labels[row];
    losses[row] = token_loss(logits, cap, labels[row], largest, sum);
    const float at_label = cap.value(load(label));
    const float row_scale = row_factors ? grad_scale * row_factors[row] : grad_scale;
    const float scale = row_scale / sum;
#pragma omp simd
    for (int64_t i = 0; i < vocab; ++i) {
      const float value = cap.value(load(logits + i));
      store(logits + i, exp_fast(value - largest) * scale * cap.derivative(value));
    }
    const float probability = exp_fast(losses[row] * -1.0F);
    store(label, (probability - 1.0F) * row_scale * cap.derivative(at_label));
  }
}

template <typename T, typename L>
void cross_entropy_loss_of(const T* logits, L cap, const int32_t* labels, float* losses,
                           int64_t rows, int64_t vocab) {
  for (int64_t row = 0; row < rows; ++row, logits += vocab) {
    losses[row] = 0;
    if (labels[row] < 0) continue;
    float largest, sum;
    softmax_statistics(logits, cap, vocab, largest, sum);
    losses[row] = token_loss(logits, cap, labels[row], largest, sum);
  }
}

template <typename T>
void cross_entropy(T* logits, const int32_t* labels, float* losses, int64_t rows, int64_t vocab,
                   float cap, float grad_scale, const float* row_factors) {
  if (cap > 0) {
    return cross_entropy_of(logits, CappedLogits{cap}, labels, losses, rows, vocab, grad_scale,
                            row_factors);
  }
  cross_entropy_of(logits, PlainLogits{}, labels, losses, rows, vocab, grad_scale, row_factors);
}

template <typename T>
void cross_entropy_loss(const T* logits, const int32_t* labels, float* losses, int64_t rows,
                        int64_t vocab, float cap) {
  if (cap > 0) return cross_entropy_loss_of(logits, CappedLogits{cap}, labels, losses, rows, vocab);
  cross_entropy_loss_of(logits, PlainLogits{}, labels, losses, rows, vocab);
}
