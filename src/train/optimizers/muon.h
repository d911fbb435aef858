#pragma once

#include <memory>
#include <vector>

#include "sftrun/train/adamw.h"

namespace sftrun::train {

struct MuonConfig {
  double momentum = config::kMuonMomentum;
  bool nesterov = true;
  double weight_decay = 0;
  config::MuonLearningRate rate = config::MuonLearningRate::kMatchRmsAdamW;
  AdamWConfig others;  ///< for embedding, head and tensors that are not matrices
};

/// Muon (kellerjordan.github.io/posts/muon), equal to torch.optim.Muon. A matrix is updated by its
/// momentum, orthogonalised with five Newton-Schulz steps in bf16. Embedding, head and tensors that
/// are not matrices are updated by AdamW with the same learning rate and weight decay. Each
/// expert's matrix is orthogonalised separately. State: 4 bytes per weight of a matrix, 8 of the
/// others.
class Muon final : public Optimizer {
 public:
  Muon(const layers::OwnedValues& values, const MuonConfig& config);
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
  MuonConfig config_;
  std::vector<Matrix> matrices_;
  std::unique_ptr<AdamW> others_;  // null: there are no such parameters
};

}  // namespace sftrun::train
