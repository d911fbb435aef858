#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "makers.h"
#include "sftrun/kernels/ops.h"

namespace sftrun::train {
namespace {

constexpr double kDecayRate = -0.8, kEpsilon = 1e-30, kClipThreshold = 1;

double decay_at(int64_t step) {
  return 1 - std::pow(static_cast<double>(step), kDecayRate);
}

/// Shapes of the moments of matrices [..., rows, columns].
std::vector<int64_t> shape_of_rows(const std::vector<int64_t>& shape) {
  return {shape.begin(), shape.end() - 1};
}
std::vector<int64_t> shape_of_columns(const std::vector<int64_t>& shape) {
  std::vector<int64_t> columns = shape_of_rows(shape);
  columns.back() = shape.back();
  return columns;
}

/// A scalar on the device of `values`.
at::Tensor root_mean_square(const at::Tensor& values) {
  return values.norm() / std::sqrt(static_cast<double>(values.numel()));
}

/// Adafactor (arXiv:1804.04235), equal to transformers' Adafactor as its Trainer sets it up:
/// scale_parameter and relative_step off, decay_rate -0.8, eps (1e-30, 1e-3), clip_threshold 1, no
/// first moment. The second moment of a matrix is stored as means over its rows and its columns.
class Adafactor final : public Optimizer {
 public:
  Adafactor(const layers::OwnedValues& values, const config::TrainConfig& config);
  void step(double learning_rate, double grad_scale) override;
  std::vector<StateTensor> state() const override;
  bool is_finite() const override;
  uint64_t bytes() const override;

 private:
  /// Shapes as in model files: [..., rows, columns].
  struct Moment {
    at::Tensor rows;     ///< [..., rows]; matrices only
    at::Tensor columns;  ///< [..., columns]; matrices only
    at::Tensor whole;    ///< shape of the tensor; all other tensors
  };
  at::Tensor scaled_gradient(Moment& moment, const at::Tensor& grad) const;

  layers::OwnedValues values_;
  double weight_decay_;
  LearningRateRatios rates_;
  std::vector<Moment> moments_;  // one per parameter
};

Adafactor::Adafactor(const layers::OwnedValues& values, const config::TrainConfig& config)
    : values_(values),
      weight_decay_(config.weight_decay),
      rates_(LearningRateRatios::from(config)) {
  require_whole_parameters(values, "adafactor");
  const at::TensorOptions fp32 = values.flat.master.options();
  for (const layers::OwnedValues::Piece& piece : values.pieces) {
    const auto zeros = [&](const std::vector<int64_t>& shape) {
      return at::zeros(piece.numel == 0 ? std::vector<int64_t>{0} : shape, fp32);
    };
    const std::vector<int64_t> shape = piece.parameter->shape_in_files();
    Moment moment;
    if (shape.size() < 2)
      moment.whole = zeros(shape);
    else
      moment = {.rows = zeros(shape_of_rows(shape)), .columns = zeros(shape_of_columns(shape))};
    moments_.push_back(std::move(moment));
  }
}

at::Tensor Adafactor::scaled_gradient(Moment& moment, const at::Tensor& grad) const {
  const double decay = decay_at(steps_);
  const at::Tensor squares = grad.square().add_(kEpsilon);
  if (moment.whole.defined()) {
    moment.whole.mul_(decay).add_(squares, 1 - decay);
    return moment.whole.rsqrt().mul_(grad);
  }
  moment.rows.mul_(decay).add_(squares.mean(-1), 1 - decay);
  moment.columns.mul_(decay).add_(squares.mean(-2), 1 - decay);
  const at::Tensor of_rows = (moment.rows / moment.rows.mean(-1, /*keepdim=*/true)).rsqrt_();
  return (of_rows.unsqueeze(-1) * moment.columns.rsqrt().unsqueeze(-2)).mul_(grad);
}

void Adafactor::step(double learning_rate, double grad_scale) {
  ++steps_;
  size_t number = 0;
  for (const layers::OwnedValues::Piece& piece : values_.pieces) {
    Moment& moment = moments_[number++];
    if (piece.numel == 0) continue;  // another rank owns it
    const layers::Parameter& parameter = *piece.parameter;
    const std::vector<int64_t>& shape = parameter.shape_in_files();
    const at::Tensor grad =
        parameter.in_file_order(piece.whole_in(values_.flat.grad)).reshape(shape).mul(grad_scale);
    at::Tensor update = scaled_gradient(moment, grad);
    const double own_rate = learning_rate * rates_.of(parameter);
    update.div_((root_mean_square(update) / kClipThreshold).clamp_min_(1)).mul_(own_rate);
    const at::Tensor master = parameter.in_file_order(piece.whole_in(values_.flat.master));
    if (parameter.decays && weight_decay_ != 0) master.mul_(1 - weight_decay_ * own_rate);
    master.sub_(update.view(master.sizes()));
    values_.refresh_compute(piece);
  }
  values_.store->compute_changed();
}

std::vector<StateTensor> Adafactor::state() const {
  std::vector<StateTensor> all;
  size_t number = 0;
  for (const layers::OwnedValues::Piece& piece : values_.pieces) {
    const std::string& name = piece.parameter->name;
    const std::vector<int64_t>& shape = piece.parameter->shape_in_files();
    const Moment& moment = moments_[number++];
    if (moment.whole.defined()) {
      all.push_back(StateTensor::whole_or_none("exp_avg_sq." + name, moment.whole, shape));
      continue;
    }
    all.push_back(
        StateTensor::whole_or_none("exp_avg_sq_row." + name, moment.rows, shape_of_rows(shape)));
    all.push_back(StateTensor::whole_or_none("exp_avg_sq_col." + name, moment.columns,
                                             shape_of_columns(shape)));
  }
  return all;
}

bool Adafactor::is_finite() const {
  for (const StateTensor& part : state()) {
    if (!std::isfinite(kernels::sum_of_squares(part.values.flatten()).item<double>())) return false;
  }
  return true;
}

uint64_t Adafactor::bytes() const {
  uint64_t total = 0;
  for (const StateTensor& part : state()) total += part.values.nbytes();
  return total;
}

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(const layers::OwnedValues& values,
                                          const config::TrainConfig& config) {
  return std::make_unique<Adafactor>(values, config);
}

}  // namespace sftrun::train
