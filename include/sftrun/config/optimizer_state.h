#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/tensor_role.h"

/// Size of an optimizer's state, computed before a model is loaded.
namespace sftrun::config {

/// Values of an 8-bit moment that share a scale (bitsandbytes' block).
inline constexpr int64_t kMomentBlock = 256;

constexpr bool is_8bit(Optimizer optimizer) {
  return optimizer == Optimizer::kAdamW8bit || optimizer == Optimizer::kPagedAdamW8bit;
}
constexpr bool is_paged(Optimizer optimizer) {
  return optimizer == Optimizer::kPagedAdamW || optimizer == Optimizer::kPagedAdamW8bit;
}

/// Each update is computed from a whole matrix, so the matrix cannot be divided over ranks.
constexpr bool needs_whole_matrices(Optimizer optimizer) {
  return optimizer == Optimizer::kAdafactor || optimizer == Optimizer::kMuon;
}

/// adamw_8bit: embeddings, and tensors of fewer than 4096 values, keep moments in fp32, as with
/// bitsandbytes and transformers' Trainer.
bool has_8bit_moments(TensorRole role, int64_t numel);

/// Whether muon updates the tensor by itself; the others are updated by AdamW.
bool is_updated_by_muon(TensorRole role);

/// Bytes of the state of one tensor.   @param shape as model files have it
int64_t optimizer_state_bytes(const TrainConfig& train, TensorRole role,
                              const std::vector<int64_t>& shape);

}  // namespace sftrun::config
