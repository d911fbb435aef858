#include <ATen/ATen.h>

#include "sftrun/layers/batch_context.h"

namespace sftrun::layers {
namespace {

BatchContext without_tokens(const BatchContext& batch) {
  BatchContext rows;
  rows.adapters = batch.adapters;
  if (!batch.training) return rows;
  rows.dropout_seed = batch.dropout_seed;
  rows.step = batch.step;
  rows.step_device = batch.step_device;
  rows.training = batch.training;
  return rows;
}

}  // namespace

BatchContext dropout_rows(const BatchContext& batch, const at::Tensor& rows) {
  BatchContext result = without_tokens(batch);
  if (!batch.training) return result;
  if (rows.is_cuda()) {
    result.token_keys_device = batch.token_keys_device.index_select(0, rows);
    return result;
  }
  for (int64_t i = 0; i < rows.size(0); ++i)
    result.token_keys.push_back(
        batch.token_keys[static_cast<size_t>(rows.const_data_ptr<int64_t>()[i])]);
  return result;
}

BatchContext dropout_rows(const BatchContext& batch, int64_t first, int64_t count) {
  BatchContext result = without_tokens(batch);
  if (!batch.training) return result;
  if (batch.token_keys_device.defined()) {
    result.token_keys_device = batch.token_keys_device.narrow(0, first, count);
    return result;
  }
  const auto begin = batch.token_keys.begin() + first;
  result.token_keys.assign(begin, begin + count);
  return result;
}

}  // namespace sftrun::layers
