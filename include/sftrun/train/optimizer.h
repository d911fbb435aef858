#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sftrun/config/optimizer_state.h"
#include "sftrun/config/run_config.h"
#include "sftrun/kernels/parameter.h"

/// What all optimizers share. Each one is a class of its own; `make_optimizer` chooses it by
/// `train.optimizer`.
namespace sftrun::train {

/// peft's default for `loraplus_lr_embedding`.
inline constexpr double kLoraPlusEmbeddingRate = 1e-6;

/// Learning rates that differ between parameters: LoRA+ (arXiv:2402.12354; peft's
/// create_loraplus_optimizer).
struct LearningRateRatios {
  /// Of LoRA's B and of parameters with one dimension, times the learning rate.
  double loraplus_lr_ratio = 1;
  /// Of A and B of an embedding's adapter, for which peft has a learning rate of its own.
  double loraplus_embedding_ratio = 1;

  double of(const kernels::Parameter& parameter) const;
};

/// What the size of a parameter's state depends on, as the memory plan has it.
config::OptimizedKind optimized_kind(const kernels::Parameter& parameter);

/// One tensor of the optimizer's state, as checkpoints name it.
struct StateTensor {
  std::string name;   ///< "exp_avg.<parameter>", "momentum_buffer.<parameter>", …
  at::Tensor values;  ///< a view; fp32 or uint8
};

/// Updates the fp32 master weights of a store and their copies in the compute dtype.
class Optimizer {
 public:
  Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  /// One update. @param grad_scale gradients are multiplied by it (clipping). Weight decay skips
  /// norms and biases, as in transformers' Trainer.
  virtual void step(double learning_rate, double grad_scale) = 0;
  /// Whether the next `step` is there. If not, the host decides about each update.
  virtual bool reads_gate() const { return false; }
  /// The same update, where the device decides whether to do it and with which factor
  /// (kernels::decide_update_); the host does not wait. An update that the gate stops is counted.
  virtual void step(double learning_rate, const at::Tensor& gate);

  /// The state of every parameter, without the number of steps. Checkpoints save and restore it.
  virtual std::vector<StateTensor> state() const = 0;
  /// Whether the whole state is finite.
  virtual bool is_finite() const = 0;
  int64_t steps() const { return steps_; }
  virtual void set_steps(int64_t steps) { steps_ = steps; }  ///< when a run resumes
  /// Size of the state, in host and device memory.
  virtual uint64_t bytes() const = 0;
  /// The part of it that takes device memory.
  virtual uint64_t device_bytes() const { return bytes(); }

 protected:
  int64_t steps_ = 0;
};

/// @param config resolved   @param store its tensors exist (ParameterStore::allocate)
std::unique_ptr<Optimizer> make_optimizer(kernels::ParameterStore& store,
                                          const config::TrainConfig& config);

/// L2 norm of all gradients.
at::Tensor grad_norm(kernels::ParameterStore& store);
/// What gradients are multiplied by so that their norm is at most max_norm
/// (torch.nn.utils.clip_grad_norm_); 1 when max_norm is 0.
double clip_factor(double norm, double max_norm);

}  // namespace sftrun::train
