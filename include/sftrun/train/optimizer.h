#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sftrun/config/optimizer_state.h"
#include "sftrun/config/run_config.h"
#include "sftrun/layers/parameter.h"

/// Interface of all optimizers. What needs no LibTorch is in their rows, config/optimizers.h.
namespace sftrun::train {

/// peft's default for `loraplus_lr_embedding`.
inline constexpr double kLoraPlusEmbeddingRate = 1e-6;

/// Learning rates that differ between parameters, as multiples of that of the schedule: parts of a model
/// with images, and LoRA+ (arXiv:2402.12354; peft's create_loraplus_optimizer).
struct LearningRateRatios {
  /// Learning rate of LoRA's B and of one-dimensional parameters, as a multiple of the learning
  /// rate.
  double loraplus_lr_ratio = 1;
  /// The same for A and B of an embedding's adapter, whose learning rate is separate in peft.
  double loraplus_embedding_ratio = 1;
  /// What all learning rates of a part of the model are multiplied by besides (train.part_learning_rates).
  ByPart<double> of_part = {{1, 1, 1}};

  static LearningRateRatios from(const config::TrainConfig& config);
  double of(const layers::Parameter& parameter) const;
};

/// One tensor of the optimizer's state, as checkpoints name it, or the part of it that this rank
/// owns.
struct StateTensor {
  std::string name;            ///< "exp_avg.<parameter>", "momentum_buffer.<parameter>", …
  at::Tensor values;           ///< the owned part: a view; fp32 or uint8
  int64_t begin = 0;           ///< element of the whole tensor at which the part begins
  std::vector<int64_t> shape;  ///< of the whole tensor
  /// Set if there is one value for each of the parameter's values. Tensor parallelism divides the
  /// state as it divides the parameter; `begin` counts within this rank's part.
  const layers::Parameter* parameter = nullptr;

  /// Values of the tensor, or of this rank's part of it.
  int64_t own_numel() const;

  /// A tensor that this rank owns completely.
  static StateTensor whole(std::string name, const at::Tensor& values) {
    return {std::move(name), values, 0, values.sizes().vec()};
  }
  /// The same, or a tensor of which this rank owns nothing.
  /// @param values of shape `shape`, or empty
  static StateTensor whole_or_none(std::string name, const at::Tensor& values,
                                   std::vector<int64_t> shape) {
    return {std::move(name), values, 0, std::move(shape)};
  }
};

/// Updates the fp32 master weights that this rank owns and their copies in the compute dtype.
class Optimizer {
 public:
  Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  /// Updates the weights once. Weight decay skips norms and biases, as in transformers' Trainer.
  /// @param grad_scale gradients are multiplied by it (clipping)
  virtual void step(double learning_rate, double grad_scale) = 0;
  /// Whether `step` with a gate is supported. If not, the host decides about each update.
  virtual bool reads_gate() const { return false; }
  /// The same update, but the device decides whether to apply it and by which gradient scale
  /// (kernels::decide_update_); the host does not wait. A skipped update counts as a step.
  virtual void step(double learning_rate, const at::Tensor& gate);

  /// The state of every parameter, which checkpoints store; without the number of steps. The list
  /// has the same names on every rank.
  virtual std::vector<StateTensor> state() const = 0;
  /// Whether all state values are finite.
  virtual bool is_finite() const = 0;
  int64_t steps() const { return steps_; }
  virtual void set_steps(int64_t steps) { steps_ = steps; }  ///< when a run is resumed
  /// Size of the state, in host and device memory.
  virtual uint64_t bytes() const = 0;
  /// The part of `bytes` in device memory.
  virtual uint64_t device_bytes() const { return bytes(); }

 protected:
  int64_t steps_ = 0;
};

/// @param config resolved   @param values of a store after ParameterStore::allocate
/// @throws ConfigError if the optimizer needs whole parameters and `values` are parts of them
std::unique_ptr<Optimizer> make_optimizer(const layers::OwnedValues& values,
                                          const config::TrainConfig& config);

/// For optimizers that cannot update a part of a parameter. @throws ConfigError naming `optimizer`
void require_whole_parameters(const layers::OwnedValues& values, const char* optimizer);
/// Factor that scales gradients to a norm of at most max_norm (torch.nn.utils.clip_grad_norm_); 1
/// when max_norm is 0.
double clip_factor(double norm, double max_norm);

}  // namespace sftrun::train
