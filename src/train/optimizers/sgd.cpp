#include "sgd.h"

#include <ATen/ATen.h>

namespace sftrun::train {

Sgd::Sgd(const layers::OwnedValues& values, const SgdConfig& config)
    : ElementwiseOptimizer(values, config.rates, config.weight_decay,
                           config.momentum > 0 ? std::vector<std::string>{"momentum_buffer"}
                                               : std::vector<std::string>{}),
      config_(config) {}

void Sgd::update(Piece& piece) {
  if (piece.weight_decay != 0) piece.grad.add_(piece.master, piece.weight_decay);
  if (config_.momentum == 0) {
    piece.master.sub_(piece.grad, piece.learning_rate);
    return;
  }
  piece.state[0].mul_(config_.momentum).add_(piece.grad);
  if (config_.nesterov) piece.grad.add_(piece.state[0], config_.momentum);
  piece.master.sub_(config_.nesterov ? piece.grad : piece.state[0], piece.learning_rate);
}

}  // namespace sftrun::train
