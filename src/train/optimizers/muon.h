#pragma once

#include <memory>
#include <vector>

#include "sftrun/train/adamw.h"

namespace sftrun::train {

struct MuonConfig {
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0;
  config::MuonLearningRate rate = config::MuonLearningRate::kMatchRmsAdamW;
  AdamWConfig others;  ///< of what is no matrix, of the embedding and of the head
};

/// Muon (kellerjordan.github.io/posts/muon), equal to torch.optim.Muon: a matrix moves along its
/// momentum, orthogonalised by five Newton-Schulz steps in bf16. Embedding, head and tensors that
/// are no matrices get AdamW with the same learning rate and weight decay. The matrices of experts
/// are orthogonalised one by one. State: 4 bytes a value of a matrix, 8 of the others.
class Muon final : public Optimizer {
 public:
  Muon(kernels::ParameterStore& store, const MuonConfig& config);
  void step(double learning_rate, double grad_scale) override;
  void set_steps(int64_t steps) override;
  std::vector<StateTensor> state() const override;
  bool is_finite() const override;
  uint64_t bytes() const override;

 private:
  struct Matrix {
    kernels::Parameter* parameter;
    at::Tensor momentum;  ///< in the shape of model files
  };
  void update(Matrix& matrix, double learning_rate, double grad_scale) const;

  kernels::ParameterStore& store_;
  MuonConfig config_;
  std::vector<Matrix> matrices_;
  std::unique_ptr<AdamW> others_;  // null: there are none
};

}  // namespace sftrun::train
