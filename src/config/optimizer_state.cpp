#include "sftrun/config/optimizer_state.h"

#include <functional>
#include <numeric>

#include "sftrun/core/error.h"

namespace sftrun::config {
namespace {

constexpr int64_t kFp32Bytes = 4;

int64_t numel_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

/// Means over rows and over columns of each matrix; one value per weight of a vector.
int64_t adafactor_values(const std::vector<int64_t>& shape) {
  const int64_t numel = numel_of(shape);
  if (shape.size() < 2) return numel;
  return numel / shape.back() + numel / shape[shape.size() - 2];
}

int64_t bytes_of_8bit(int64_t numel) {
  return numel + (numel + kMomentBlock - 1) / kMomentBlock * kFp32Bytes;
}

}  // namespace

bool has_8bit_moments(TensorRole role, int64_t numel) {
  constexpr int64_t kFewest = 4096;  // bitsandbytes' min_8bit_size
  return numel >= kFewest && role != TensorRole::kEmbedding;
}

bool is_updated_by_muon(TensorRole role) {
  using enum TensorRole;
  return role == kLinear || role == kExperts || role == kLoraA || role == kLoraB ||
         role == kEmbeddingLora;
}

int64_t optimizer_state_bytes(const TrainConfig& train, TensorRole role,
                              const std::vector<int64_t>& shape) {
  const int64_t numel = numel_of(shape);
  switch (train.optimizer) {
    case Optimizer::kAdamW:
    case Optimizer::kPagedAdamW:
      return 2 * numel * kFp32Bytes;
    case Optimizer::kAdamW8bit:
    case Optimizer::kPagedAdamW8bit:
      return has_8bit_moments(role, numel) ? 2 * bytes_of_8bit(numel) : 2 * numel * kFp32Bytes;
    case Optimizer::kSgd:
      return train.resolved_momentum() > 0 ? numel * kFp32Bytes : 0;
    case Optimizer::kLion:
      return numel * kFp32Bytes;
    case Optimizer::kAdafactor:
      return adafactor_values(shape) * kFp32Bytes;
    case Optimizer::kMuon:
      return (is_updated_by_muon(role) ? 1 : 2) * numel * kFp32Bytes;
  }
  invariant_failed(__FILE__, __LINE__, "a known optimizer");
}

}  // namespace sftrun::config
