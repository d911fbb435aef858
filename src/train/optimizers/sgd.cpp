#include <ATen/ATen.h>

#include "elementwise_optimizer.h"
#include "makers.h"

namespace sftrun::train {
namespace {

/// Stochastic gradient descent, equal to torch.optim.SGD, which adds weight decay to the gradient
/// (not decoupled):
///     g = grad + weight_decay * w,  buffer = momentum * buffer + g,
///     w -= learning_rate * (nesterov ? g + momentum * buffer : buffer)
class Sgd final : public ElementwiseOptimizer {
 public:
  Sgd(const layers::OwnedValues& values, const config::TrainConfig& config)
      : ElementwiseOptimizer(values, config),
        momentum_(config.resolved_momentum()),
        nesterov_(config.resolved_nesterov()) {}

 private:
  void update(Piece& piece) override {
    if (piece.weight_decay != 0) piece.grad.add_(piece.master, piece.weight_decay);
    if (momentum_ == 0) {
      piece.master.sub_(piece.grad, piece.learning_rate);
      return;
    }
    piece.state[0].mul_(momentum_).add_(piece.grad);
    if (nesterov_) piece.grad.add_(piece.state[0], momentum_);
    piece.master.sub_(nesterov_ ? piece.grad : piece.state[0], piece.learning_rate);
  }

  double momentum_;
  bool nesterov_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const layers::OwnedValues& values,
                                    const config::TrainConfig& config) {
  return std::make_unique<Sgd>(values, config);
}

}  // namespace sftrun::train
