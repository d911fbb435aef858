#include "lion.h"

#include <ATen/ATen.h>

namespace sftrun::train {

Lion::Lion(const layers::OwnedValues& values, const LionConfig& config)
    : ElementwiseOptimizer(values, config.rates, config.weight_decay, {"exp_avg"}),
      config_(config) {}

void Lion::update(Piece& piece) {
  if (piece.weight_decay != 0) piece.master.mul_(1 - piece.learning_rate * piece.weight_decay);
  const at::Tensor direction =
      (piece.state[0] * config_.beta1).add_(piece.grad, 1 - config_.beta1).sign_();
  piece.master.sub_(direction, piece.learning_rate);
  piece.state[0].mul_(config_.beta2).add_(piece.grad, 1 - config_.beta2);
}

}  // namespace sftrun::train
