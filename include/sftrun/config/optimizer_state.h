#pragma once

#include <cstdint>
#include <string_view>

#include "sftrun/config/run_config.h"

/// How large the moments of trained tensors are.
namespace sftrun::config {

/// Values of an 8-bit moment that share a factor (bitsandbytes' block).
inline constexpr int64_t kMomentBlock = 256;

constexpr bool is_8bit(Optimizer optimizer) {
  return optimizer == Optimizer::kAdamW8bit || optimizer == Optimizer::kPagedAdamW8bit;
}
constexpr bool is_paged(Optimizer optimizer) {
  return optimizer == Optimizer::kPagedAdamW || optimizer == Optimizer::kPagedAdamW8bit;
}

/// adamw_8bit, as transformers' Trainer has bitsandbytes do it: embeddings, and tensors of fewer
/// than 4096 values, keep moments in fp32.
bool has_8bit_moments(std::string_view name, int64_t numel);

/// Of both moments of a tensor, with the factors of 8-bit ones.
int64_t moment_bytes(Optimizer optimizer, std::string_view name, int64_t numel);

}  // namespace sftrun::config
