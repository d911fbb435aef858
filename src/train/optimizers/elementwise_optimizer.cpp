#include "elementwise_optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sftrun/kernels/ops.h"

namespace sftrun::train {

ElementwiseOptimizer::ElementwiseOptimizer(kernels::ParameterStore& store,
                                           const LearningRateRatios& rates, double weight_decay,
                                           std::string state_name)
    : store_(store), weight_decay_(weight_decay), state_name_(std::move(state_name)) {
  for (const kernels::Parameter& parameter : store.parameters()) {
    const int64_t end = parameter.offset + parameter.numel;
    const double lr_ratio = rates.of(parameter);
    // The padding between two parameters is zero and stays zero.
    if (!segments_.empty() && segments_.back().decays == parameter.decays &&
        segments_.back().lr_ratio == lr_ratio) {
      segments_.back().end = end;
    } else {
      segments_.push_back({parameter.offset, end, parameter.decays, lr_ratio});
    }
  }
  if (!state_name_.empty()) state_ = at::zeros_like(store.master());
}

void ElementwiseOptimizer::step(double learning_rate, double grad_scale) {
  constexpr int64_t kPiece = int64_t{1} << 22;  // values per piece: temporaries of 16 MiB
  ++steps_;
  const bool has_copy = !store_.compute().is_same(store_.master());
  for (const Segment& segment : segments_) {
    for (int64_t begin = segment.begin; begin < segment.end; begin += kPiece) {
      const int64_t count = std::min(kPiece, segment.end - begin);
      Piece piece{.master = store_.master().narrow(0, begin, count),
                  .grad = store_.grad().narrow(0, begin, count) * grad_scale,
                  .state = state_.defined() ? state_.narrow(0, begin, count) : at::Tensor(),
                  .learning_rate = learning_rate * segment.lr_ratio,
                  .weight_decay = segment.decays ? weight_decay_ : 0};
      update(piece);
      if (has_copy) store_.compute().narrow(0, begin, count).copy_(piece.master);
    }
  }
  store_.compute_changed();
}

std::vector<StateTensor> ElementwiseOptimizer::state() const {
  std::vector<StateTensor> all;
  if (!state_.defined()) return all;
  for (const kernels::Parameter& parameter : store_.parameters()) {
    all.push_back({state_name_ + "." + parameter.name,
                   state_.narrow(0, parameter.offset, parameter.numel).view(parameter.shape)});
  }
  return all;
}

bool ElementwiseOptimizer::is_finite() const {
  return !state_.defined() || std::isfinite(kernels::sum_of_squares(state_).item<double>());
}

uint64_t ElementwiseOptimizer::bytes() const {
  return state_.defined() ? state_.nbytes() : 0;
}

}  // namespace sftrun::train
