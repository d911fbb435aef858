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

/// Room for the angles of `rows` tokens.
kernels::RopeAngles angles_for(const spec::RopeSpec& rope, int64_t rows) {
  const int64_t half = rope.rotary_dim / 2;
  return {at::empty({rows, half}, at::kFloat), at::empty({rows, half}, at::kFloat)};
}

void write_row(kernels::RopeAngles& angles, int64_t row, const spec::RopeTable& table,
               int64_t position) {
  const int64_t half = angles.cos.size(1);
  write_angles(table, position, angles.cos.data_ptr<float>() + row * half,
               angles.sin.data_ptr<float>() + row * half);
}

kernels::RopeAngles on(at::Device device, const kernels::RopeAngles& angles) {
  return {angles.cos.to(device), angles.sin.to(device)};
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

void RopeCache::Table::grow(int64_t positions) {
  const int64_t have = angles.cos.defined() ? angles.cos.size(0) : 0;
  if (positions <= have) return;
  const int64_t size = std::max(positions, have * 2);
  const spec::RopeTable table = spec::rope_table(rope, size);
  angles = angles_for(rope, size);
  for (int64_t position = 0; position < size; ++position)
    write_row(angles, position, table, position);
}

kernels::RopeAngles RopeCache::Table::of_documents(const std::vector<int32_t>& cu_seqlens,
                                                   int32_t max_seqlen) {
  kernels::RopeAngles result = angles_for(rope, cu_seqlens.empty() ? 0 : cu_seqlens.back());
  if (!rope.by_length()) grow(max_seqlen);
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    const int64_t begin = cu_seqlens[i], length = cu_seqlens[i + 1] - begin;
    if (rope.by_length()) {
      const spec::RopeTable table = spec::rope_table(rope, length);
      for (int64_t p = 0; p < length; ++p) write_row(result, begin + p, table, p);
    } else {
      result.cos.narrow(0, begin, length).copy_(angles.cos.narrow(0, 0, length));
      result.sin.narrow(0, begin, length).copy_(angles.sin.narrow(0, 0, length));
    }
  }
  return result;
}

kernels::RopeAngles RopeCache::Table::of_positions(const std::vector<int64_t>& positions) const {
  kernels::RopeAngles result = angles_for(rope, static_cast<int64_t>(positions.size()));
  for (size_t row = 0; row < positions.size(); ++row) {
    write_row(result, static_cast<int64_t>(row), spec::rope_table(rope, positions[row] + 1),
              positions[row]);
  }
  return result;
}

void RopeCache::fill(kernels::BatchContext& context, at::Device device) {
  context.ropes.clear();
  for (Table& table : tables_)
    context.ropes.push_back(on(device, table.of_documents(context.cu_seqlens, context.max_seqlen)));
}

void RopeCache::fill_positions(kernels::BatchContext& context,
                               const std::vector<int64_t>& positions, at::Device device) {
  context.ropes.clear();
  for (const Table& table : tables_)
    context.ropes.push_back(on(device, table.of_positions(positions)));
}

int64_t RopeCache::switches_after() const {
  for (const Table& table : tables_) {
    if (table.rope.type == spec::RopeType::kLongRope)
      return table.rope.original_max_position_embeddings;
  }
  return 0;
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
