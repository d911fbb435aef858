#include "sftrun/model/packed_batch.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>

#include "sftrun/kernels/delta_chunks.h"
#include "staging.h"

namespace sftrun::model {
namespace {

/// [T] of each document's number in its global batch and each token's position.
void write_token_keys(const data::Batch& batch, std::span<kernels::TokenKey> keys) {
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const auto first = static_cast<size_t>(batch.cu_seqlens[document]),
               end = static_cast<size_t>(batch.cu_seqlens[document + 1]);
    for (size_t i = first; i < end; ++i) {
      keys[i] = {static_cast<uint32_t>(batch.document_keys[document]),
                 static_cast<uint32_t>(batch.position_ids[i])};
    }
  }
}

/// Rows that carry a label, and the labels.
void add_labels(Staging& staging, const data::Batch& batch, PackedBatch& packed) {
  const int64_t num_labels =
      batch.num_tokens() - std::count(batch.labels.begin(), batch.labels.end(), data::kIgnoreIndex);
  staging.add<int64_t>(
      num_labels,
      [&labels = batch.labels](std::span<int64_t> rows) {
        size_t label = 0;
        for (size_t row = 0; row < labels.size(); ++row)
          if (labels[row] != data::kIgnoreIndex) rows[label++] = static_cast<int64_t>(row);
      },
      packed.label_rows);
  staging.add<int32_t>(
      num_labels,
      [&labels = batch.labels](std::span<int32_t> kept) {
        std::copy_if(labels.begin(), labels.end(), kept.begin(),
                     [](int32_t label) { return label != data::kIgnoreIndex; });
      },
      packed.labels);
}

/// What dropout and noise read of each token; on a CPU they read it from the host's own array.
void add_token_keys(Staging& staging, const data::Batch& batch, kernels::BatchContext& context) {
  static_assert(sizeof(kernels::TokenKey) == 2 * sizeof(int32_t));
  staging.add<int32_t>(
      2 * batch.num_tokens(),
      [&batch](std::span<int32_t> room) {
        std::vector<kernels::TokenKey> keys(room.size() / 2);
        write_token_keys(batch, keys);
        std::memcpy(room.data(), keys.data(), room.size_bytes());
      },
      context.token_keys_device);
}

/// @param arrays must outlive `staging.send`
void add_chunks(Staging& staging, const kernels::ChunkArrays& arrays, kernels::Chunks& chunks) {
  chunks.steps = arrays.steps;
  staging.add_copy<int64_t>(arrays.tokens, chunks.tokens);
  staging.add_copy<float>(arrays.real, chunks.real);
  staging.add_copy<int64_t>(arrays.previous, chunks.previous);
  staging.add_copy<int64_t>(arrays.following, chunks.following);
  staging.add_copy<float>(arrays.has_following, chunks.has_following);
  staging.add_copy<int64_t>(arrays.places, chunks.places);
}

void add_rope_rows(Staging& staging, const RopeRows& rows, DeviceRopeRows& on_device) {
  if (!rows.rows.empty()) staging.add_copy<int64_t>(rows.rows, on_device.rows);
  if (rows.cos.empty()) return;
  staging.add_copy<float>(rows.cos, on_device.cos);
  staging.add_copy<float>(rows.sin, on_device.sin);
}

/// Every array of the batch, in one copy.
void send(const data::Batch& batch, RopeCache& rope, const BatchTarget& target, bool is_pinned,
          PackedBatch& packed) {
  kernels::BatchContext& context = packed.context;
  Staging staging(target, is_pinned);
  at::Tensor positions;
  staging.add_copy<int64_t>(batch.tokens, packed.tokens);
  staging.add_copy<int64_t>(batch.position_ids, positions);
  add_labels(staging, batch, packed);
  if (target.device.is_cuda()) {
    staging.add_copy<int32_t>(batch.cu_seqlens, context.cu_seqlens_device);
    add_token_keys(staging, batch, context);
  }
  kernels::ChunkArrays chunk_arrays;
  const auto chunks = std::make_shared<kernels::Chunks>();
  if (target.cuts_chunks) {
    chunk_arrays = kernels::chunk_arrays(batch.cu_seqlens);
    add_chunks(staging, chunk_arrays, *chunks);
  }
  const std::vector<RopeRows> rope_rows = rope.rows_of(batch.cu_seqlens);
  std::vector<DeviceRopeRows> device_rows(rope_rows.size());
  for (size_t i = 0; i < rope_rows.size(); ++i)
    add_rope_rows(staging, rope_rows[i], device_rows[i]);
  staging.send();
  if (target.device.is_cuda()) context.token_keys_device = context.token_keys_device.view({-1, 2});
  if (target.cuts_chunks) {
    chunks->tokens = chunks->tokens.view({-1, kernels::kChunk});
    chunks->real = chunks->real.view({-1, kernels::kChunk});
    context.chunks = chunks;
  }
  context.ropes = rope.angles(positions, device_rows, is_pinned);
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
  if (target.device.is_cpu()) {
    context.token_keys.resize(batch.tokens.size());
    write_token_keys(batch, context.token_keys);
  }
  send(batch, rope, target, is_pinned, packed);
  return packed;
}

}  // namespace sftrun::model
