#include "sftrun/model/packed_batch.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "staging.h"

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

kernels::RopeAngles RopeCache::Table::on(at::Device device) {
  if (device.is_cpu()) return angles;
  if (!on_device.cos.defined() || on_device.cos.size(0) < angles.cos.size(0))
    on_device = {angles.cos.to(device), angles.sin.to(device)};
  return on_device;
}

kernels::RopeAngles RopeCache::Table::of_lengths(const std::vector<int32_t>& cu_seqlens) const {
  kernels::RopeAngles result = angles_for(rope, cu_seqlens.back());
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    const int64_t begin = cu_seqlens[i], length = cu_seqlens[i + 1] - begin;
    const spec::RopeTable table = spec::rope_table(rope, length);
    for (int64_t p = 0; p < length; ++p) write_row(result, begin + p, table, p);
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

void RopeCache::fill(kernels::BatchContext& context, const at::Tensor& positions) {
  context.ropes.clear();
  for (Table& table : tables_) {
    if (table.rope.by_length()) {
      const kernels::RopeAngles rows = table.of_lengths(context.cu_seqlens);
      context.ropes.push_back({rows.cos.to(positions.device()), rows.sin.to(positions.device())});
      continue;
    }
    table.grow(context.max_seqlen);
    const kernels::RopeAngles all = table.on(positions.device());
    context.ropes.push_back(
        {all.cos.index_select(0, positions), all.sin.index_select(0, positions)});
  }
}

void RopeCache::fill_positions(kernels::BatchContext& context,
                               const std::vector<int64_t>& positions, at::Device device) {
  context.ropes.clear();
  for (const Table& table : tables_) {
    const kernels::RopeAngles rows = table.of_positions(positions);
    context.ropes.push_back({rows.cos.to(device), rows.sin.to(device)});
  }
}

int64_t RopeCache::switches_after() const {
  for (const Table& table : tables_) {
    if (table.rope.type == spec::RopeType::kLongRope)
      return table.rope.original_max_position_embeddings;
  }
  return 0;
}

namespace {

std::vector<kernels::TokenKey> token_keys_of(const data::Batch& batch) {
  std::vector<kernels::TokenKey> keys;
  keys.reserve(batch.tokens.size());
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    for (int32_t i = batch.cu_seqlens[document]; i < batch.cu_seqlens[document + 1]; ++i) {
      keys.push_back({static_cast<uint32_t>(batch.document_keys[document]),
                      static_cast<uint32_t>(batch.position_ids[static_cast<size_t>(i)])});
    }
  }
  return keys;
}

/// Its arrays on the device.
struct DeviceArrays {
  at::Tensor tokens, positions, label_rows, labels, cu_seqlens, token_keys;
};

DeviceArrays stage(const data::Batch& batch, const std::vector<kernels::TokenKey>& keys,
                   const BatchTarget& target, bool is_pinned) {
  const int64_t num_tokens = batch.num_tokens(),
                num_ends = static_cast<int64_t>(batch.cu_seqlens.size()),
                num_labels = num_tokens - std::count(batch.labels.begin(), batch.labels.end(),
                                                     data::kIgnoreIndex);
  constexpr int64_t kWide = sizeof(int64_t), kNarrow = sizeof(int32_t), kArrays = 6;
  Staging staging(num_tokens * 2 * (kWide + kNarrow) + num_labels * (kWide + kNarrow) +
                      num_ends * kNarrow + kArrays * Staging::kAlignment,
                  target, is_pinned);
  const auto tokens = staging.add<int64_t>(num_tokens);
  std::copy(batch.tokens.begin(), batch.tokens.end(), tokens.begin());
  const auto positions = staging.add<int64_t>(num_tokens);
  std::copy(batch.position_ids.begin(), batch.position_ids.end(), positions.begin());
  const auto rows = staging.add<int64_t>(num_labels);
  const auto labels = staging.add<int32_t>(num_labels);
  size_t label = 0;
  for (size_t row = 0; row < batch.labels.size(); ++row) {
    if (batch.labels[row] == data::kIgnoreIndex) continue;
    rows[label] = static_cast<int64_t>(row);
    labels[label++] = batch.labels[row];
  }
  const auto ends = staging.add<int32_t>(num_ends);
  std::copy(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), ends.begin());
  const auto staged_keys = staging.add<int32_t>(2 * num_tokens);
  static_assert(sizeof(kernels::TokenKey) == 2 * sizeof(int32_t));
  std::memcpy(staged_keys.data(), keys.data(), staged_keys.size_bytes());
  const std::vector<at::Tensor> arrays = staging.send();
  return {arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], arrays[5].view({-1, 2})};
}

}  // namespace

BatchTarget::BatchTarget(at::Device to) : device(to) {
  if (to.is_cuda()) copies = c10::impl::VirtualGuardImpl(to.type()).getStreamFromGlobalPool(to);
}

PackedBatch prepare_batch(const data::Batch& batch, RopeCache& rope, const BatchTarget& target,
                          const Randomness& randomness, bool is_pinned) {
  PackedBatch packed;
  if (batch.num_tokens() == 0) return packed;
  kernels::BatchContext& context = packed.context;
  context.cu_seqlens = batch.cu_seqlens;
  context.max_seqlen = batch.max_seqlen;
  context.dropout_seed = randomness.seed;
  context.step = randomness.step;
  context.training = randomness.training;
  context.token_keys = token_keys_of(batch);
  const DeviceArrays arrays = stage(batch, context.token_keys, target, is_pinned);
  packed.tokens = arrays.tokens;
  packed.label_rows = arrays.label_rows;
  packed.labels = arrays.labels;
  if (target.device.is_cuda()) {
    context.cu_seqlens_device = arrays.cu_seqlens;
    context.token_keys_device = arrays.token_keys;
  }
  rope.fill(context, arrays.positions);
  return packed;
}

}  // namespace sftrun::model
