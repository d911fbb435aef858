#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sftrun/kernels/ops.h"

namespace sftrun::test {

/// A packed batch of documents of these lengths, with RoPE for heads of `head_dim` channels.
inline kernels::BatchMetadata batch_of(const std::vector<int32_t>& lengths, int64_t head_dim) {
  kernels::BatchMetadata batch;
  batch.cu_seqlens = {0};
  std::vector<at::Tensor> positions;
  for (const int32_t length : lengths) {
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
    batch.max_seqlen = std::max(batch.max_seqlen, length);
    positions.push_back(at::arange(length, at::kFloat));
    for (int32_t i = 0; i < length; ++i) {
      batch.token_keys.push_back(
          {static_cast<uint32_t>(batch.cu_seqlens.size()), static_cast<uint32_t>(i)});
    }
  }
  const at::Tensor angle = at::cat(positions).unsqueeze(1) *
                           at::pow(10000.0, -at::arange(head_dim / 2, at::kFloat) * 2 / head_dim);
  batch.ropes = {{at::cos(angle).contiguous(), at::sin(angle).contiguous()}};
  batch.training = true;
  return batch;
}

}  // namespace sftrun::test
