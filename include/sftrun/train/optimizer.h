#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/parameter.h"

/// AdamW (arXiv:1711.05101) over the flat buffers, equal to torch.optim.AdamW to rounding; or with
/// moments of 8 bits a value (arXiv:2110.02861), equal to bitsandbytes.optim.AdamW with
/// optim_bits=8 as transformers' Trainer sets it up (config::has_8bit_moments says which moments
/// stay in fp32).
namespace sftrun::train {

/// peft's default for `loraplus_lr_embedding`.
inline constexpr double kLoraPlusEmbeddingRate = 1e-6;

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  bool is_8bit = false;
  /// LoRA+ (arXiv:2402.12354; peft's create_loraplus_optimizer): the learning rate of updates' B
  /// and of what has one dimension is so many times that of the rest.
  double loraplus_lr_ratio = 1;
  /// Likewise that of an embedding's A and B, for which peft has a rate of its own.
  double loraplus_embedding_ratio = 1;
  /// Moments lie in host memory and are on the device part by part while they are updated.
  bool moments_on_host = false;
  /// Then on the device at a time, twice.
  int64_t values_of_part = int64_t{1} << 22;
};

/// A part of the optimizer's state, as checkpoints name it.
struct StateTensor {
  std::string name;   ///< "exp_avg.<parameter>", "exp_avg_absmax.<parameter>", …
  at::Tensor values;  ///< a view; fp32 or uint8
};

class StagedMoments;

class AdamW {
 public:
  AdamW(kernels::ParameterStore& store, AdamWConfig config);
  ~AdamW();
  /// One update with gradients times `grad_scale` (clipping). Weight decay skips norms and biases,
  /// as transformers' Trainer.
  void step(double learning_rate, double grad_scale);
  /// The same where factor and permission stand in a gate (kernels::decide_update_): nothing waits
  /// for it. A step that the gate does not let pass is counted all the same.
  void step(double learning_rate, const at::Tensor& gate);

  /// Everything but the number of steps, parameter by parameter.
  std::vector<StateTensor> state() const;
  /// Whether all moments are finite.
  bool is_finite() const;
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }  ///< resuming
  /// Of the moments, wherever they are.
  uint64_t bytes() const;
  /// What of them is on the device: all, or as much as passes through.
  uint64_t device_bytes() const;

 private:
  /// Where a parameter's moments are.
  struct Place {
    bool is_8bit;
    int64_t first;  ///< element of exp_avg_ and exp_avg_sq_, or block
    int64_t end;
  };
  /// Neighbouring parameters of one kind, merged.
  struct Segment {
    Place place;
    int64_t begin, end;  ///< elements of the flat buffers
    bool decays;
    double lr_ratio;
  };
  void add_segment(const kernels::Parameter& parameter, const Place& place);
  void allocate(int64_t num_fp32, const std::vector<std::pair<int64_t, int64_t>>& blocks);
  at::Tensor zero_moments(at::IntArrayRef shape, at::ScalarType dtype) const;
  /// What gradients are multiplied by: the gate's factor where there is a gate.
  struct GradScale {
    double factor;
    at::Tensor gate;
  };
  void step(double learning_rate, const GradScale& scale);
  void update(const Segment& segment, double learning_rate, const GradScale& scale);
  void update_in_parts(const Segment& segment, const kernels::AdamWParams& params,
                       const at::Tensor& gate);
  void update_8bit(const Segment& segment, double learning_rate, const GradScale& scale);
  void update_8bit_in_parts(const Segment& segment, const kernels::AdamW8bitParams& params,
                            const at::Tensor& gate);

  kernels::ParameterStore& store_;
  AdamWConfig config_;
  std::vector<Place> places_;  // of each parameter
  std::vector<Segment> segments_;
  at::Tensor exp_avg_, exp_avg_sq_;  // [elements with moments in fp32]
  kernels::BlockwiseMoments blockwise_;
  int64_t steps_ = 0;
  std::unique_ptr<StagedMoments> staged_;  // null: moments are where the weights are
};

/// L2 norm of all gradients.
at::Tensor grad_norm(kernels::ParameterStore& store);
/// What gradients are multiplied by so that their norm is at most max_norm
/// (torch.nn.utils.clip_grad_norm_); 1 when max_norm is 0.
double clip_factor(double norm, double max_norm);

}  // namespace sftrun::train
