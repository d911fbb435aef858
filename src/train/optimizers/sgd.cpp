#include "sgd.h"

#include <ATen/ATen.h>

namespace sftrun::train {

Sgd::Sgd(const layers::OwnedValues& values, const SgdConfig& config)
    : ElementwiseOptimizer(values, config.rates, config.weight_decay,
                           config.momentum > 0 ? "momentum_buffer" : ""),
      config_(config) {}

void Sgd::update(Piece& piece) {
  if (piece.weight_decay != 0) piece.grad.add_(piece.master, piece.weight_decay);
  if (config_.momentum == 0) {
    piece.master.sub_(piece.grad, piece.learning_rate);
    return;
  }
  piece.state.mul_(config_.momentum).add_(piece.grad);
  if (config_.nesterov) piece.grad.add_(piece.state, config_.momentum);
  piece.master.sub_(config_.nesterov ? piece.grad : piece.state, piece.learning_rate);
}

}  // namespace sftrun::train
