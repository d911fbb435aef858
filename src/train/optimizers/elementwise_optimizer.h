#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "sftrun/train/optimizer.h"

namespace sftrun::train {

/// Optimizers that update each weight by its own gradient and at most one state value, with
/// LibTorch's operations. They run over the store's flat buffers a piece at a time, so that
/// temporaries stay small.
class ElementwiseOptimizer : public Optimizer {
 public:
  void step(double learning_rate, double grad_scale) final;
  std::vector<StateTensor> state() const final;
  bool is_finite() const final;
  uint64_t bytes() const final;

 protected:
  /// @param state_name of the state tensors in checkpoints; empty: there is no state
  ElementwiseOptimizer(kernels::ParameterStore& store, const LearningRateRatios& rates,
                       double weight_decay, std::string state_name);

  /// Neighbouring weights with the same settings. All tensors are fp32 and flat.
  struct Piece {
    at::Tensor master;  ///< a view of the weights
    at::Tensor grad;    ///< a copy, already scaled
    at::Tensor state;   ///< a view; undefined where there is none
    double learning_rate, weight_decay;
  };
  virtual void update(Piece& piece) = 0;

 private:
  struct Segment {
    int64_t begin, end;  ///< elements of the flat buffers
    bool decays;
    double lr_ratio;
  };

  kernels::ParameterStore& store_;
  double weight_decay_;
  std::string state_name_;
  std::vector<Segment> segments_;
  at::Tensor state_;  // [flat] fp32
};

}  // namespace sftrun::train
