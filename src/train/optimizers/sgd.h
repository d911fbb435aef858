#pragma once

#include "elementwise_optimizer.h"

namespace sftrun::train {

struct SgdConfig {
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;  ///< added to the gradient, as in torch.optim.SGD (not decoupled)
  LearningRateRatios rates;
};

/// Stochastic gradient descent, equal to torch.optim.SGD:
///     g = grad + weight_decay * w,  buffer = momentum * buffer + g,
///     w -= learning_rate * (nesterov ? g + momentum * buffer : buffer)
/// State: 4 bytes per weight with momentum, none without.
class Sgd final : public ElementwiseOptimizer {
 public:
  Sgd(const layers::OwnedValues& values, const SgdConfig& config);

 private:
  void update(Piece& piece) override;
  SgdConfig config_;
};

}  // namespace sftrun::train
