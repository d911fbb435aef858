#include "attention/attention_cache.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <cstring>
#include <limits>

namespace sftrun::layers {

AttentionCache::AttentionCache(const kernels::AttentionShape& shape,
                               const at::TensorOptions& options)
    : keys_(at::empty({0, shape.num_kv_heads, 0, shape.head_dim}, options)), values_(keys_) {}

uint64_t AttentionCache::bytes_of_token() const {
  return 2 * static_cast<uint64_t>(keys_.size(1) * keys_.size(3)) * keys_.element_size();
}

void AttentionCache::grow(int64_t rows, int64_t capacity) {
  for (at::Tensor* tensor : {&keys_, &values_}) {
    // Zeros: positions that a row does not have are multiplied by a weight of 0.
    const at::Tensor larger =
        at::zeros({rows, tensor->size(1), capacity, tensor->size(3)}, tensor->options());
    larger.narrow(0, 0, tensor->size(0)).narrow(2, 0, tensor->size(2)).copy_(*tensor);
    *tensor = larger;
  }
}

void AttentionCache::move_row(int64_t from, int64_t to) {
  for (const at::Tensor& tensor : {keys_, values_}) tensor[to].copy_(tensor[from]);
}

void AttentionCache::store_sequence(int64_t row, const at::Tensor& k, const at::Tensor& v) {
  const auto write = [&](const at::Tensor& to, const at::Tensor& from) {
    const int64_t length = from.size(0);
    to[row].narrow(1, 0, length).copy_(from.view({length, to.size(1), to.size(3)}).transpose(0, 1));
  };
  write(keys_, k);
  write(values_, v);
}

namespace {

/// @param to [rows, heads, capacity, depth]   @param from [n, heads * depth]
void store_on_host(const at::Tensor& to, const at::Tensor& positions, const at::Tensor& from) {
  const at::Tensor tokens = from.contiguous();
  const int64_t heads = to.size(1), capacity = to.size(2);
  const size_t bytes = static_cast<size_t>(to.size(3)) * to.element_size();
  const auto* source = static_cast<const std::byte*>(tokens.const_data_ptr());
  auto* cache = static_cast<std::byte*>(to.mutable_data_ptr());
  const auto* place = positions.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < tokens.size(0) * heads; ++i) {
    const auto slot = static_cast<size_t>(i * capacity + place[i / heads]);
    std::memcpy(cache + slot * bytes, source + static_cast<size_t>(i) * bytes, bytes);
  }
}

}  // namespace

void AttentionCache::store_tokens(const at::Tensor& positions, const at::Tensor& k,
                                  const at::Tensor& v) {
  if (k.is_cpu()) {
    store_on_host(keys_, positions, k);
    store_on_host(values_, positions, v);
    return;
  }
  const at::Tensor rows = at::arange(positions.size(0), positions.options());
  const auto write = [&](const at::Tensor& to, const at::Tensor& from) {
    to.transpose(1, 2).index_put_({rows, positions}, from.view({-1, to.size(1), to.size(3)}));
  };
  write(keys_, k);
  write(values_, v);
}

namespace {

bool has_kernel(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

}  // namespace

at::Tensor attend_cached(const Attention& attention, const at::Tensor& q,
                         const AttentionCache& cache, StepMasks& masks) {
  const kernels::AttentionShape& shape = attention.shape;
  const at::Tensor &keys = cache.keys(), &values = cache.values();
  if (has_kernel(q)) {
    return kernels::cached_attention(q.contiguous(), keys, values, masks.lengths(), shape,
                                     attention.sinks.weight);
  }
  const StepMasks::Span& seen = masks.of_window(shape.window);
  const int64_t n = q.size(0), group = shape.num_heads / shape.num_kv_heads;
  const auto visible = [&](const at::Tensor& x) {
    return x.narrow(0, 0, n).narrow(2, seen.first, seen.count);
  };
  const at::Tensor queries = q.view({n, shape.num_kv_heads, group, shape.head_dim});
  at::Tensor scores =
      at::matmul(queries, visible(keys).transpose(2, 3)).to(at::kFloat) * shape.scale;
  if (shape.softcap > 0) scores = scores.div_(shape.softcap).tanh_().mul_(shape.softcap);
  if (seen.hidden.defined())
    scores.masked_fill_(seen.hidden, -std::numeric_limits<double>::infinity());
  if (attention.sinks.defined()) {
    const at::Tensor sinks = attention.sinks.weight.to(at::kFloat);
    scores = at::cat(
        {scores, sinks.view({1, shape.num_kv_heads, group, 1}).expand({n, -1, -1, -1})}, -1);
  }
  const at::Tensor weights = at::softmax(scores, -1).narrow(-1, 0, seen.count).to(q.scalar_type());
  return at::matmul(weights, visible(values)).reshape({n, -1});
}

}  // namespace sftrun::layers
