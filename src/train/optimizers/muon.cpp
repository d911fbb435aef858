#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "makers.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/train/adamw.h"

namespace sftrun::train {
namespace {

/// Makes all singular values of a matrix nearly 1.   @param matrix [rows, columns] fp32
at::Tensor orthogonalized(const at::Tensor& matrix) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kSmallest = 1e-7;
  constexpr int kSteps = 5;
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(at::kBFloat16);
  if (is_tall) x = x.t();
  x.div_(x.norm().clamp_min(kSmallest));
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor gram = x.mm(x.t());
    const at::Tensor update = at::addmm(gram, gram, gram, kB, kC);
    x = at::addmm(x, update, x, kA);
  }
  return is_tall ? x.t() : x;
}

/// Orthogonalises a matrix, or each matrix of a stack.
at::Tensor orthogonalized_each(const at::Tensor& matrices) {
  if (matrices.dim() == 2) return orthogonalized(matrices);
  std::vector<at::Tensor> each;
  for (int64_t i = 0; i < matrices.size(0); ++i) each.push_back(orthogonalized(matrices[i]));
  return at::stack(each);
}

/// Learning-rate factor: torch.optim.Muon's adjust_lr_fn.
double rate_for(config::MuonLearningRate rate, const at::Tensor& matrices) {
  const auto rows = static_cast<double>(matrices.size(-2)),
             columns = static_cast<double>(matrices.size(-1));
  if (rate == config::MuonLearningRate::kOriginal) return std::sqrt(std::max(1.0, rows / columns));
  return 0.2 * std::sqrt(std::max(rows, columns));
}

/// Muon (kellerjordan.github.io/posts/muon), equal to torch.optim.Muon. A matrix is updated by its
/// momentum, orthogonalised with five Newton-Schulz steps in bf16. Embedding, head and tensors that
/// are not matrices are updated by AdamW with the same learning rate and weight decay. Each
/// expert's matrix is orthogonalised separately.
class Muon final : public Optimizer {
 public:
  Muon(const layers::OwnedValues& values, const config::TrainConfig& config);
  void step(double learning_rate, double grad_scale) override;
  void set_steps(int64_t steps) override;
  std::vector<StateTensor> state() const override;
  bool is_finite() const override;
  uint64_t bytes() const override;

 private:
  struct Matrix {
    layers::OwnedValues::Piece piece;
    at::Tensor momentum;  ///< shape as in model files
  };
  void update(Matrix& matrix, double learning_rate, double grad_scale) const;

  layers::OwnedValues values_;
  double momentum_, weight_decay_;
  bool nesterov_;
  config::MuonLearningRate rate_;
  LearningRateRatios rates_;
  std::vector<Matrix> matrices_;
  std::unique_ptr<AdamW> others_;  // null: there are no such parameters
};

Muon::Muon(const layers::OwnedValues& values, const config::TrainConfig& config)
    : values_(values),
      momentum_(config.resolved_momentum()),
      weight_decay_(config.weight_decay),
      nesterov_(config.resolved_nesterov()),
      rate_(config.muon_lr),
      rates_(LearningRateRatios::from(config)) {
  require_whole_parameters(values, "muon");
  layers::OwnedValues others = values;
  others.pieces.clear();
  for (const layers::OwnedValues::Piece& piece : values.pieces) {
    const layers::Parameter& parameter = *piece.parameter;
    if (config::is_updated_by_muon(parameter.role))
      matrices_.push_back(
          {piece, at::zeros(piece.numel == 0 ? std::vector<int64_t>{0} : parameter.shape_in_files(),
                            values.flat.master.options())});
    else
      others.pieces.push_back(piece);
  }
  if (!others.pieces.empty())
    others_ =
        std::make_unique<AdamW>(others, AdamWConfig::from(config, values.flat.master.device()));
}

void Muon::update(Matrix& matrix, double learning_rate, double grad_scale) const {
  const layers::Parameter& parameter = *matrix.piece.parameter;
  const at::Tensor grad = parameter.in_file_order(matrix.piece.whole_in(values_.flat.grad))
                              .reshape(matrix.momentum.sizes())
                              .mul(grad_scale);
  matrix.momentum.lerp_(grad, 1 - momentum_);
  const at::Tensor direction =
      orthogonalized_each(nesterov_ ? grad.lerp(matrix.momentum, momentum_) : matrix.momentum);
  const at::Tensor master = parameter.in_file_order(matrix.piece.whole_in(values_.flat.master));
  if (parameter.decays) master.mul_(1 - learning_rate * weight_decay_);
  master.sub_(direction.reshape(master.sizes()), learning_rate * rate_for(rate_, direction));
  values_.refresh_compute(matrix.piece);
}

void Muon::step(double learning_rate, double grad_scale) {
  ++steps_;
  for (Matrix& matrix : matrices_) {
    if (matrix.momentum.numel() == 0) continue;  // another rank owns it
    update(matrix, learning_rate * rates_.of(*matrix.piece.parameter), grad_scale);
  }
  if (others_) others_->step(learning_rate, grad_scale);
  values_.store->compute_changed();
}

void Muon::set_steps(int64_t steps) {
  steps_ = steps;
  if (others_) others_->set_steps(steps);
}

std::vector<StateTensor> Muon::state() const {
  std::vector<StateTensor> all = others_ ? others_->state() : std::vector<StateTensor>();
  for (const Matrix& matrix : matrices_)
    all.push_back(StateTensor::whole_or_none("momentum_buffer." + matrix.piece.parameter->name,
                                             matrix.momentum,
                                             matrix.piece.parameter->shape_in_files()));
  return all;
}

bool Muon::is_finite() const {
  const bool others = !others_ || others_->is_finite();
  return others && std::all_of(matrices_.begin(), matrices_.end(), [](const Matrix& matrix) {
           return std::isfinite(kernels::sum_of_squares(matrix.momentum.flatten()).item<double>());
         });
}

uint64_t Muon::bytes() const {
  uint64_t total = others_ ? others_->bytes() : 0;
  for (const Matrix& matrix : matrices_) total += matrix.momentum.nbytes();
  return total;
}

}  // namespace

std::unique_ptr<Optimizer> make_muon(const layers::OwnedValues& values,
                                     const config::TrainConfig& config) {
  return std::make_unique<Muon>(values, config);
}

}  // namespace sftrun::train
