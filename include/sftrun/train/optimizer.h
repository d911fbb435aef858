#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sftrun/kernels/parameter.h"

/// AdamW (arXiv:1711.05101) over the flat buffers, equal to torch.optim.AdamW to rounding.
namespace sftrun::train {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  /// LoRA+ (arXiv:2402.12354; peft's create_loraplus_optimizer): the learning rate of updates' B
  /// and of what has one dimension is so many times that of the rest.
  double loraplus_lr_ratio = 1;
};

class AdamW {
 public:
  AdamW(kernels::ParameterStore& store, AdamWConfig config);
  /// One update with gradients times `grad_scale` (clipping). Weight decay skips norms and biases,
  /// as transformers' Trainer.
  void step(double learning_rate, double grad_scale);

  at::Tensor& exp_avg() { return exp_avg_; }        ///< [flat] fp32
  at::Tensor& exp_avg_sq() { return exp_avg_sq_; }  ///< [flat] fp32
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }  ///< resuming
  uint64_t bytes() const { return exp_avg_.nbytes() + exp_avg_sq_.nbytes(); }

 private:
  struct Segment {
    int64_t begin, end;
    bool decays;
    double lr_ratio;
  };
  kernels::ParameterStore& store_;
  AdamWConfig config_;
  std::vector<Segment> segments_;  // neighbouring parameters of one kind, merged
  at::Tensor exp_avg_, exp_avg_sq_;
  int64_t steps_ = 0;
};

/// L2 norm of all gradients.
double grad_norm(kernels::ParameterStore& store);
/// What gradients are multiplied by so that their norm is at most max_norm
/// (torch.nn.utils.clip_grad_norm_); 1 when max_norm is 0.
double clip_factor(double norm, double max_norm);

}  // namespace sftrun::train
