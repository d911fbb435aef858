// The largest logit and the sum of exp(logit - largest), in two passes over a row that stays in
// cache.
template <typename T>
void softmax_statistics(const T* logits, int64_t vocab, float& largest, float& sum) {
  float top = load(logits);
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < vocab; ++i) top = load(logits + i) > top ? load(logits + i) : top;
  // fp32 within a block, fp64 across blocks: in one long fp32 sum most of a large vocabulary's
  // small terms would fall below the last bit, and the loss would come out too low by some 1e-6.
  constexpr int64_t kBlock = 256;
  double total = 0;
  for (int64_t first = 0; first < vocab; first += kBlock) {
    const int64_t end = first + kBlock < vocab ? first + kBlock : vocab;
    float block = 0;
#pragma omp simd reduction(+ : block)
    for (int64_t i = first; i < end; ++i) block += exp_fast(load(logits + i) - top);
    total += static_cast<double>(block);
  }
  largest = top;
  sum = static_cast<float>(total);
}

template <typename T>
float token_loss(const T* logits, int32_t label, float largest, float sum) {
  // A NaN logit does not win comparisons; adding the row's sum would hide it, so the label's own
  // logit carries it on, and NaN elsewhere reaches `sum`.
  return largest + __builtin_logf(sum) - load(logits + label);
}

template <typename T>
void cross_entropy(T* logits, const int32_t* labels, float* losses, int64_t rows, int64_t vocab,
                   float grad_scale) {
  for (int64_t row = 0; row < rows; ++row, logits += vocab) {
    float largest, sum;
    softmax_statistics(logits, vocab, largest, sum);
    losses[row] = token_loss(logits, labels[row], largest, sum);
    const float scale = grad_scale / sum;
#pragma omp simd
    for (int64_t i = 0; i < vocab; ++i)
      store(logits + i, exp_fast(load(logits + i) - largest) * scale);
    const float at_label = exp_fast(losses[row] * -1.0F);
    store(logits + labels[row], (at_label - 1.0F) * grad_scale);
  }
}

template <typename T>
void cross_entropy_loss(const T* logits, const int32_t* labels, float* losses, int64_t rows,
                        int64_t vocab) {
  for (int64_t row = 0; row < rows; ++row, logits += vocab) {
    float largest, sum;
    softmax_statistics(logits, vocab, largest, sum);
    losses[row] = token_loss(logits, labels[row], largest, sum);
  }
}
