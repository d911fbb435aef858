#pragma once

#include "elementwise_optimizer.h"

namespace sftrun::train {

struct LionConfig {
  double beta1 = 0.9, beta2 = 0.999, weight_decay = 0;
  LearningRateRatios rates;
};

/// Lion (arXiv:2302.06675, algorithm 2), equal to bitsandbytes.optim.Lion with 32-bit state:
///     w -= learning_rate * (sign(beta1 * m + (1 - beta1) * grad) + weight_decay * w)
///     m = beta2 * m + (1 - beta2) * grad
/// State: 4 bytes per weight.
class Lion final : public ElementwiseOptimizer {
 public:
  Lion(const layers::OwnedValues& values, const LionConfig& config);

 private:
  void update(Piece& piece) override;
  LionConfig config_;
};

}  // namespace sftrun::train
