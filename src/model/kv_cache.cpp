#include "kv_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include "sftrun/core/error.h"
#include "sftrun/kernels/ops.h"

namespace sftrun::model {

KvCache::KvCache(Decoder& decoder) {
  const auto options =
      at::TensorOptions().dtype(decoder.options().dtype).device(decoder.options().device);
  for (const layers::Layer& layer : decoder.layers()) {
    LayerCache cache;
    if (!layer.delta_net.defined() && layer.keys_of < 0) {
      const kernels::AttentionShape& shape = layer.attention;
      cache.keys = at::empty({0, shape.num_kv_heads, 0, shape.head_dim}, options);
      cache.values = cache.keys;
    }
    layers_.push_back(std::move(cache));
  }
}

namespace {

/// Twice the size, but not above `most`, if `needed` is more than the present size.
int64_t grown(int64_t now, int64_t needed, int64_t most) {
  return needed <= now ? now : std::max(needed, std::min(2 * now, most));
}

}  // namespace

uint64_t KvCache::bytes(const Size& size) const {
  const auto rows = static_cast<uint64_t>(std::max(size.rows, rows_)),
             length = static_cast<uint64_t>(std::max(size.length, capacity_));
  uint64_t of_token = 0;  // of all layers
  for (const LayerCache& cache : layers_) {
    if (!cache.keys.defined()) continue;
    of_token += 2 * static_cast<uint64_t>(cache.keys.size(1) * cache.keys.size(3)) *
                cache.keys.element_size();
  }
  return rows * length * of_token;
}

void KvCache::reserve(const Size& needed, const Size& most) {
  const int64_t old_rows = rows_, old_capacity = capacity_;
  rows_ = grown(rows_, needed.rows, most.rows);
  capacity_ = grown(capacity_, needed.length, most.length);
  if (rows_ == old_rows && capacity_ == old_capacity) return;
  for (LayerCache& cache : layers_) {
    cache.states.resize(static_cast<size_t>(rows_));
    for (at::Tensor* tensor : {&cache.keys, &cache.values}) {
      if (!tensor->defined()) continue;
      // Zeros: positions that a row does not have are multiplied by a weight of 0.
      at::Tensor larger =
          at::zeros({rows_, tensor->size(1), capacity_, tensor->size(3)}, tensor->options());
      larger.narrow(0, 0, old_rows).narrow(2, 0, old_capacity).copy_(*tensor);
      *tensor = larger;
    }
  }
}

void KvCache::store_prompt(size_t layer, int64_t row, const at::Tensor& k, const at::Tensor& v) {
  const LayerCache& cache = layers_[layer];
  const auto write = [&](const at::Tensor& to, const at::Tensor& from) {
    const int64_t length = from.size(0);
    to[row].narrow(1, 0, length).copy_(from.view({length, to.size(1), to.size(3)}).transpose(0, 1));
  };
  write(cache.keys, k);
  write(cache.values, v);
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

void KvCache::store_tokens(size_t layer, const at::Tensor& positions, const at::Tensor& k,
                           const at::Tensor& v) {
  const LayerCache& cache = layers_[layer];
  if (k.is_cpu()) {
    store_on_host(cache.keys, positions, k);
    store_on_host(cache.values, positions, v);
    return;
  }
  const at::Tensor rows = at::arange(positions.size(0), positions.options());
  const auto write = [&](const at::Tensor& to, const at::Tensor& from) {
    to.transpose(1, 2).index_put_({rows, positions}, from.view({-1, to.size(1), to.size(3)}));
  };
  write(cache.keys, k);
  write(cache.values, v);
}

layers::DeltaState& KvCache::delta_state(size_t layer, int64_t row) {
  return layers_[layer].states[static_cast<size_t>(row)];
}

void KvCache::move_row(int64_t from, int64_t to) {
  if (from == to) return;
  for (LayerCache& cache : layers_) {
    for (const at::Tensor& tensor : {cache.keys, cache.values})
      if (tensor.defined()) tensor[to].copy_(tensor[from]);
    cache.states[static_cast<size_t>(to)] = std::move(cache.states[static_cast<size_t>(from)]);
  }
}

StepMasks::StepMasks(std::span<const int64_t> lengths, at::Device device)
    : lengths_(lengths.begin(), lengths.end()) {
  on_device_ = at::tensor(lengths_, at::kLong).to(device).view({-1, 1, 1, 1});
}

const StepMasks::Span& StepMasks::of_window(int64_t window) {
  const auto found = spans_.find(window);
  return found != spans_.end() ? found->second : spans_.emplace(window, make(window)).first->second;
}

StepMasks::Span StepMasks::make(int64_t window) const {
  const auto [shortest, longest] = std::minmax_element(lengths_.begin(), lengths_.end());
  Span span;
  span.first = window > 0 ? std::max<int64_t>(0, *shortest - window) : 0;
  span.count = *longest - span.first;
  if (*shortest == *longest) return span;
  const at::Tensor positions = at::arange(span.first, *longest, on_device_.options());
  span.hidden = positions >= on_device_;
  if (window > 0) span.hidden = span.hidden | (positions < on_device_ - window);
  return span;
}

namespace {

bool has_kernel(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

}  // namespace

at::Tensor attend_cached(const layers::Layer& layer, const at::Tensor& q, const at::Tensor& keys,
                         const at::Tensor& values, StepMasks& masks) {
  const kernels::AttentionShape& shape = layer.attention;
  if (has_kernel(q)) {
    return kernels::cached_attention(q.contiguous(), keys, values, masks.lengths(), shape,
                                     layer.sinks.weight);
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
  if (layer.sinks.defined()) {
    const at::Tensor sinks = layer.sinks.weight.to(at::kFloat);
    scores = at::cat(
        {scores, sinks.view({1, shape.num_kv_heads, group, 1}).expand({n, -1, -1, -1})}, -1);
  }
  const at::Tensor weights = at::softmax(scores, -1).narrow(-1, 0, seen.count).to(q.scalar_type());
  return at::matmul(weights, visible(values)).reshape({n, -1});
}

}  // namespace sftrun::model
