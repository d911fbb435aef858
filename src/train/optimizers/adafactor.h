#pragma once

#include <vector>

#include "sftrun/train/optimizer.h"

namespace sftrun::train {

struct AdafactorConfig {
  double weight_decay = 0;
  LearningRateRatios rates;
};

/// Adafactor (arXiv:1804.04235), equal to transformers' Adafactor as its Trainer sets it up:
/// scale_parameter and relative_step off, decay_rate -0.8, eps (1e-30, 1e-3), clip_threshold 1, no
/// first moment. The second moment of a matrix is stored as means over its rows and its columns, 4
/// * (rows + columns) bytes; that of other tensors takes 4 bytes per value.
class Adafactor final : public Optimizer {
 public:
  Adafactor(const layers::OwnedValues& values, const AdafactorConfig& config);
  void step(double learning_rate, double grad_scale) override;
  std::vector<StateTensor> state() const override;
  bool is_finite() const override;
  uint64_t bytes() const override;

 private:
  /// Shapes as in model files: [..., rows, columns].
  struct Moment {
    at::Tensor rows;     ///< [..., rows]; matrices only
    at::Tensor columns;  ///< [..., columns]; matrices only
    at::Tensor whole;    ///< shape of the tensor; all other tensors
  };
  at::Tensor scaled_gradient(Moment& moment, const at::Tensor& grad) const;

  layers::OwnedValues values_;
  AdafactorConfig config_;
  std::vector<Moment> moments_;  // one per parameter
};

}  // namespace sftrun::train
