// Logits as they are, or soft-capped: cap * tanh(logit / cap), computed again where it is needed.
struct PlainLogits {
  float value(float logit) const { return logit; }
  float derivative(float /*value*/) const { return 1.0F; }
};
struct CappedLogits {
  float cap;
  float value(float logit) const { return cap * tanh_fast(logit / cap); }
  float derivative(float value) const { return 1.0F - value / cap * (value / cap); }
};

// The largest logit and the sum of exp(logit - largest), in two passes over a row that stays in
// cache.
template <typename T, typename L>
void softmax_statistics(const T* logits, L of, int64_t vocab, float& largest, float& sum) {
  float top = of.value(load(logits));
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < vocab; ++i) {
    const float value = of.value(load(logits + i));
    top = value > top ? value : top;
  }
  // fp32 within a block, fp64 across blocks: in one long fp32 sum most of a large vocabulary's
  // small terms would fall below the last bit, and the loss would come out too low by some 1e-6.
  constexpr int64_t kBlock = 256;
  double total = 0;
  for (int64_t first = 0; first < vocab; first += kBlock) {
    const int64_t end = first + kBlock < vocab ? first + kBlock : vocab;
    float block = 0;
#pragma omp simd reduction(+ : block)
    for (int64_t i = first; i < end; ++i) block += exp_fast(of.value(load(logits + i)) - top);
    total += static_cast<double>(block);
  }
  largest = top;
  sum = static_cast<float>(total);
}

template <typename T, typename L>
float token_loss(const T* logits, L of, int32_t label, float largest, float sum) {
  // A NaN logit does not win comparisons; adding the row's sum would hide it, so the label's own
  // logit carries it on, and NaN elsewhere reaches `sum`.
  return largest + __builtin_logf(sum) - of.value(load(logits + label));
}

template <typename T, typename L>
void cross_entropy_of(T* logits, L of, const int32_t* labels, float* losses, int64_t rows,
                      int64_t vocab, float grad_scale) {
  for (int64_t row = 0; row < rows; ++row, logits += vocab) {
    if (labels[row] < 0) {
      losses[row] = 0;
      for (int64_t i = 0; i < vocab; ++i) store(logits + i, 0.0F);
      continue;
    }
    float largest, sum;
    softmax_statistics(logits, of, vocab, largest, sum);
    T* label = logits + labels[row];
    losses[row] = token_loss(logits, of, labels[row], largest, sum);
    const float at_label = of.value(load(label));
    const float scale = grad_scale / sum;
#pragma omp simd
    for (int64_t i = 0; i < vocab; ++i) {
      const float value = of.value(load(logits + i));
      store(logits + i, exp_fast(value - largest) * scale * of.derivative(value));
    }
    const float probability = exp_fast(losses[row] * -1.0F);
    store(label, (probability - 1.0F) * grad_scale * of.derivative(at_label));
  }
}

template <typename T, typename L>
void cross_entropy_loss_of(const T* logits, L of, const int32_t* labels, float* losses,
                           int64_t rows, int64_t vocab) {
  for (int64_t row = 0; row < rows; ++row, logits += vocab) {
    losses[row] = 0;
    if (labels[row] < 0) continue;
    float largest, sum;
    softmax_statistics(logits, of, vocab, largest, sum);
    losses[row] = token_loss(logits, of, labels[row], largest, sum);
  }
}

template <typename T>
void cross_entropy(T* logits, const int32_t* labels, float* losses, int64_t rows, int64_t vocab,
                   float cap, float grad_scale) {
  if (cap > 0)
    return cross_entropy_of(logits, CappedLogits{cap}, labels, losses, rows, vocab, grad_scale);
  cross_entropy_of(logits, PlainLogits{}, labels, losses, rows, vocab, grad_scale);
}

template <typename T>
void cross_entropy_loss(const T* logits, const int32_t* labels, float* losses, int64_t rows,
                        int64_t vocab, float cap) {
  if (cap > 0) return cross_entropy_loss_of(logits, CappedLogits{cap}, labels, losses, rows, vocab);
  cross_entropy_loss_of(logits, PlainLogits{}, labels, losses, rows, vocab);
}
