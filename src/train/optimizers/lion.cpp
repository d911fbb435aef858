#include <ATen/ATen.h>

#include "elementwise_optimizer.h"
#include "makers.h"

namespace sftrun::train {
namespace {

/// Lion (arXiv:2302.06675, algorithm 2), equal to bitsandbytes.optim.Lion with 32-bit state:
///     w -= learning_rate * (sign(beta1 * m + (1 - beta1) * grad) + weight_decay * w)
///     m = beta2 * m + (1 - beta2) * grad
class Lion final : public ElementwiseOptimizer {
 public:
  Lion(const layers::OwnedValues& values, const config::TrainConfig& config)
      : ElementwiseOptimizer(values, config),
        beta1_(config.adam_beta1),
        beta2_(config.adam_beta2) {}

 private:
  void update(Piece& piece) override {
    if (piece.weight_decay != 0) piece.master.mul_(1 - piece.learning_rate * piece.weight_decay);
    const at::Tensor direction = (piece.state[0] * beta1_).add_(piece.grad, 1 - beta1_).sign_();
    piece.master.sub_(direction, piece.learning_rate);
    piece.state[0].mul_(beta2_).add_(piece.grad, 1 - beta2_);
  }

  double beta1_, beta2_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(const layers::OwnedValues& values,
                                     const config::TrainConfig& config) {
  return std::make_unique<Lion>(values, config);
}

}  // namespace sftrun::train
