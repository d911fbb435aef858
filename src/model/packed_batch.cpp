#include "sftrun/model/packed_batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "sftrun/core/error.h"

namespace sftrun::model {
namespace {

/// Angles as transformers computes them: fp32 product of position and inverse frequency, then cos
/// and sin times the scaling.
void write_angles(const spec::RopeTable& table, int64_t position, float* cos, float* sin) {
  for (size_t i = 0; i < table.inv_freq.size(); ++i) {
    const float angle = static_cast<float>(position) * table.inv_freq[i];
    cos[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * table.attention_scaling;
    sin[i] = static_cast<float>(std::sin(static_cast<double>(angle))) * table.attention_scaling;
  }
}

template <typename T>
at::Tensor to_tensor(const std::vector<T>& values, at::ScalarType dtype, at::Device device) {
  at::Tensor host =
      at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(dtype));
  if (dtype == at::kLong) {
    std::copy(values.begin(), values.end(), host.data_ptr<int64_t>());
  } else {
    std::copy(values.begin(), values.end(), host.data_ptr<int32_t>());
  }
  return host.to(device);
}

}  // namespace

void RopeCache::grow(int64_t positions) {
  const int64_t have = cos_.defined() ? cos_.size(0) : 0;
  if (positions <= have) return;
  const int64_t half = arch_.head_dim / 2, size = std::max(positions, have * 2);
  const spec::RopeTable table = spec::rope_table(arch_, size);
  cos_ = at::empty({size, half}, at::kFloat);
  sin_ = at::empty({size, half}, at::kFloat);
  for (int64_t position = 0; position < size; ++position) {
    write_angles(table, position, cos_.data_ptr<float>() + position * half,
                 sin_.data_ptr<float>() + position * half);
  }
}

void RopeCache::fill(kernels::BatchContext& context, at::Device device) {
  const int64_t half = arch_.head_dim / 2,
                total = context.cu_seqlens.empty() ? 0 : context.cu_seqlens.back();
  at::Tensor cos = at::empty({total, half}, at::kFloat), sin = at::empty({total, half}, at::kFloat);
  const bool by_length =
      arch_.rope.type ==
      spec::RopeType::kDynamic;  // its frequencies depend on the document's length
  if (!by_length) grow(context.max_seqlen);
  for (size_t i = 0; i + 1 < context.cu_seqlens.size(); ++i) {
    const int64_t begin = context.cu_seqlens[i], length = context.cu_seqlens[i + 1] - begin;
    if (by_length) {
      const spec::RopeTable table = spec::rope_table(arch_, length);
      for (int64_t p = 0; p < length; ++p) {
        write_angles(table, p, cos.data_ptr<float>() + (begin + p) * half,
                     sin.data_ptr<float>() + (begin + p) * half);
      }
    } else {
      cos.narrow(0, begin, length).copy_(cos_.narrow(0, 0, length));
      sin.narrow(0, begin, length).copy_(sin_.narrow(0, 0, length));
    }
  }
  context.cos = cos.to(device);
  context.sin = sin.to(device);
}

void RopeCache::fill_positions(kernels::BatchContext& context,
                               const std::vector<int64_t>& positions, at::Device device) {
  const int64_t half = arch_.head_dim / 2, rows = static_cast<int64_t>(positions.size());
  at::Tensor cos = at::empty({rows, half}, at::kFloat), sin = at::empty({rows, half}, at::kFloat);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = positions[static_cast<size_t>(row)];
    const spec::RopeTable table = spec::rope_table(arch_, position + 1);
    write_angles(table, position, cos.data_ptr<float>() + row * half,
                 sin.data_ptr<float>() + row * half);
  }
  context.cos = cos.to(device);
  context.sin = sin.to(device);
}

PackedBatch prepare_batch(const data::Batch& batch, RopeCache& rope, at::Device device,
                          const Randomness& randomness) {
  PackedBatch packed;
  if (batch.num_tokens() == 0) return packed;
  packed.tokens = to_tensor(batch.tokens, at::kLong, device);
  std::vector<int64_t> rows;
  std::vector<int32_t> labels;
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    if (batch.labels[i] == data::kIgnoreIndex) continue;
    rows.push_back(static_cast<int64_t>(i));
    labels.push_back(batch.labels[i]);
  }
  packed.label_rows = to_tensor(rows, at::kLong, device);
  packed.labels = to_tensor(labels, at::kInt, device);
  kernels::BatchContext& context = packed.context;
  context.cu_seqlens = batch.cu_seqlens;
  context.max_seqlen = batch.max_seqlen;
  context.dropout_seed = randomness.seed;
  context.step = randomness.step;
  context.training = randomness.training;
  context.token_keys.reserve(batch.tokens.size());
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    for (int32_t i = batch.cu_seqlens[document]; i < batch.cu_seqlens[document + 1]; ++i) {
      context.token_keys.push_back(
          {static_cast<uint32_t>(batch.document_keys[document]),
           static_cast<uint32_t>(batch.position_ids[static_cast<size_t>(i)])});
    }
  }
  if (device.is_cuda()) {
    context.cu_seqlens_device = to_tensor(batch.cu_seqlens, at::kInt, device);
    context.token_keys_device =
        at::from_blob(context.token_keys.data(),
                      {static_cast<int64_t>(context.token_keys.size()), 2}, at::kInt)
            .to(device);
  }
  rope.fill(context, device);
  return packed;
}

}  // namespace sftrun::model
