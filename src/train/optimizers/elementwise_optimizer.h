#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "sftrun/train/optimizer.h"

namespace sftrun::train {

/// Optimizers that compute each weight's update from its gradient and its state values, with
/// LibTorch's operations. They process the flat buffers piece by piece, so that
/// temporaries stay small.
class ElementwiseOptimizer : public Optimizer {
 public:
  void step(double learning_rate, double grad_scale) final;
  std::vector<StateTensor> state() const final;
  bool is_finite() const final;
  uint64_t bytes() const final;

 protected:
  /// The row of config::kOptimizers says which state each weight has.
  ElementwiseOptimizer(const layers::OwnedValues& values, const config::TrainConfig& config);

  /// Adjacent weights with the same settings. All tensors are flat and fp32.
  struct Piece {
    at::Tensor master;              ///< a view of the weights
    at::Tensor grad;                ///< a copy, already scaled
    std::vector<at::Tensor> state;  ///< views, in the order of the row
    double learning_rate, weight_decay;
  };
  virtual void update(Piece& piece) = 0;

 private:
  struct Segment {
    int64_t begin, end;  ///< elements of the flat buffers
    bool decays;
    double lr_ratio;
  };

  layers::OwnedValues values_;
  double weight_decay_;
  std::vector<std::string> state_names_;
  std::vector<Segment> segments_;
  std::vector<at::Tensor> state_;  // [flat] fp32 each
};

}  // namespace sftrun::train
