#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/config/run_config.h"

/// How large an optimizer's state is, from what is known before a model is loaded.
namespace sftrun::config {

/// Values of an 8-bit moment that share a scale (bitsandbytes' block).
inline constexpr int64_t kMomentBlock = 256;

constexpr bool is_8bit(Optimizer optimizer) {
  return optimizer == Optimizer::kAdamW8bit || optimizer == Optimizer::kPagedAdamW8bit;
}
constexpr bool is_paged(Optimizer optimizer) {
  return optimizer == Optimizer::kPagedAdamW || optimizer == Optimizer::kPagedAdamW8bit;
}

/// Some optimizers treat trained tensors differently by what they are.
enum class OptimizedKind {
  kMatrix,     ///< of a linear layer, or LoRA's A or B
  kExperts,    ///< [experts, rows, columns]
  kEmbedding,  ///< a lookup table
  kHead,       ///< the language-model head
  kOther,      ///< norms, biases, convolutions
};

/// adamw_8bit, as bitsandbytes and transformers' Trainer do it: embeddings, and tensors of fewer
/// than 4096 values, keep moments in fp32.
bool has_8bit_moments(OptimizedKind kind, int64_t numel);

/// muon: the tensors that it updates itself; the others get AdamW.
bool is_updated_by_muon(OptimizedKind kind);

/// Bytes of the state of one tensor.   @param shape as model files have it
int64_t optimizer_state_bytes(const TrainConfig& train, OptimizedKind kind,
                              const std::vector<int64_t>& shape);

}  // namespace sftrun::config
