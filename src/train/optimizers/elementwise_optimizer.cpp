#include "elementwise_optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sftrun/kernels/ops.h"

namespace sftrun::train {

ElementwiseOptimizer::ElementwiseOptimizer(const layers::OwnedValues& values,
                                           const config::TrainConfig& config)
    : values_(values), weight_decay_(config.weight_decay) {
  const auto rates = LearningRateRatios::from(config);
  for (const config::StateSize& state : config::optimizer_state(config, TensorRole::kLinear, {1}))
    state_names_.emplace_back(state.name);
  for (const layers::OwnedValues::Piece& piece : values_.pieces) {
    if (piece.numel == 0) continue;
    const double lr_ratio = rates.of(*piece.parameter);
    const bool decays = piece.parameter->decays;
    // The padding between two parameters is zero and stays zero.
    if (!segments_.empty() && segments_.back().decays == decays &&
        segments_.back().lr_ratio == lr_ratio) {
      segments_.back().end = piece.end_offset();
    } else {
      segments_.push_back({piece.offset, piece.end_offset(), decays, lr_ratio});
    }
  }
  for (size_t i = 0; i < state_names_.size(); ++i)
    state_.push_back(at::zeros_like(values_.flat.master));
}

void ElementwiseOptimizer::step(double learning_rate, double grad_scale) {
  constexpr int64_t kPiece = int64_t{1} << 22;  // values per piece: temporaries of 16 MiB
  ++steps_;
  const bool has_copy = !values_.flat.compute.is_same(values_.flat.master);
  for (const Segment& segment : segments_) {
    for (int64_t begin = segment.begin; begin < segment.end; begin += kPiece) {
      const int64_t count = std::min(kPiece, segment.end - begin);
      Piece piece{.master = values_.flat.master.narrow(0, begin, count),
                  .grad = values_.flat.grad.narrow(0, begin, count) * grad_scale,
                  .state = {},
                  .learning_rate = learning_rate * segment.lr_ratio,
                  .weight_decay = segment.decays ? weight_decay_ : 0};
      for (const at::Tensor& state : state_) piece.state.push_back(state.narrow(0, begin, count));
      update(piece);
      if (has_copy) values_.flat.compute.narrow(0, begin, count).copy_(piece.master);
    }
  }
  values_.store->compute_changed();
}

std::vector<StateTensor> ElementwiseOptimizer::state() const {
  std::vector<StateTensor> all;
  for (const layers::OwnedValues::Piece& piece : values_.pieces) {
    for (size_t i = 0; i < state_.size(); ++i)
      all.push_back({state_names_[i] + "." + piece.parameter->name,
                     state_[i].narrow(0, piece.offset, piece.numel), piece.begin,
                     piece.parameter->whole_shape(), piece.parameter});
  }
  return all;
}

bool ElementwiseOptimizer::is_finite() const {
  return std::all_of(state_.begin(), state_.end(), [](const at::Tensor& state) {
    return std::isfinite(kernels::sum_of_squares(state).item<double>());
  });
}

uint64_t ElementwiseOptimizer::bytes() const {
  uint64_t total = 0;
  for (const at::Tensor& state : state_) total += state.nbytes();
  return total;
}

}  // namespace sftrun::train
