// Order of operations of torch.optim.AdamW's single-tensor path (torch/optim/adamw.py), so results
// agree up to rounding. Compiled without fused multiply-add, so the result does not depend on where
// vectorised parts of the loop begin and end.
void adamw(float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
           uint16_t* compute_copy, int64_t n, AdamWParams a) {
  const float step_size = a.learning_rate / a.bias_correction1;
  const float decay = 1.0F - a.learning_rate * a.weight_decay;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * a.grad_scale;
    const float m = exp_avg[i] + a.one_minus_beta1 * (g - exp_avg[i]);
    const float v = exp_avg_sq[i] * a.beta2 + a.one_minus_beta2 * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    const float denominator = __builtin_sqrtf(v) / a.sqrt_bias_correction2 + a.epsilon;
    param[i] = param[i] * decay - step_size * (m / denominator);
  }
  if (compute_copy == nullptr) return;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(compute_copy + i, param[i]);
}
