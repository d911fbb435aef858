#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/config/run_config.h"

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

/// Kinds of trained tensors that some optimizers treat differently.
enum class OptimizedKind {
  kMatrix,     ///< of a linear layer, or LoRA's A or B
  kExperts,    ///< [experts, rows, columns]
  kEmbedding,  ///< a lookup table
  kHead,       ///< the language-model head
  kOther,      ///< norms, biases, convolutions
};

/// adamw_8bit: embeddings, and tensors of fewer than 4096 values, keep moments in fp32, as with
/// bitsandbytes and transformers' Trainer.
bool has_8bit_moments(OptimizedKind kind, int64_t numel);

/// Whether muon updates the tensor by itself; the others are updated by AdamW.
bool is_updated_by_muon(OptimizedKind kind);

/// Bytes of the state of one tensor.   @param shape as model files have it
int64_t optimizer_state_bytes(const TrainConfig& train, OptimizedKind kind,
                              const std::vector<int64_t>& shape);

}  // namespace sftrun::config
