#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "../parallel.h"
#include "../row_kernels.h"
#include "sftrun/kernels/ops.h"

namespace sftrun::kernels {
namespace {

/// The keys of one sequence that its newest token sees.
struct SeenKeys {
  int64_t first, count;
  SeenKeys(int64_t length, int64_t window)
      : first(window > 0 ? std::max<int64_t>(0, length - window) : 0), count(length - first) {}
};

template <typename T>
void attend(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
            std::span<const int64_t> lengths, const AttentionShape& shape, const float* sinks,
            at::Tensor& out) {
  const int64_t kv_heads = shape.num_kv_heads, group = shape.num_heads / kv_heads,
                depth = shape.head_dim, capacity = keys.size(2), num_groups = q.size(0) * kv_heads;
  const auto pointer = [](const at::Tensor& x) {
    return static_cast<const T*>(x.const_data_ptr());
  };
  const T *from = pointer(q), *first_key = pointer(keys), *first_value = pointer(values);
  auto* to = static_cast<T*>(out.data_ptr());
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  constexpr int64_t kGrain = 64 * 1024;  // least values of keys of a thread
  const int64_t grain = std::max<int64_t>(1, kGrain / (longest * depth));
  parallel_for(0, num_groups, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> room(static_cast<size_t>(group * (longest + 2 * depth)));
    for (int64_t i = begin; i < end; ++i) {
      const SeenKeys seen(lengths[static_cast<size_t>(i / kv_heads)], shape.window);
      const int64_t offset = (i * capacity + seen.first) * depth;
      row_kernels<T>().attention.attend_cached(
          from + i * group * depth, group, first_key + offset, first_value + offset, seen.count,
          depth, static_cast<float>(shape.scale), static_cast<float>(shape.softcap),
          sinks == nullptr ? nullptr : sinks + i % kv_heads * group, room.data(),
          to + i * group * depth);
    }
  });
}

}  // namespace

at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                            std::span<const int64_t> lengths, const AttentionShape& shape,
                            const at::Tensor& sinks) {
  const auto n = static_cast<int64_t>(lengths.size());
  TORCH_CHECK(q.is_cpu() && q.is_contiguous() && q.dim() == 2 && q.size(0) == n && n > 0 &&
                  q.size(1) == shape.num_heads * shape.head_dim,
              "queries of ", n, " sequences are ", q.sizes());
  for (const at::Tensor& cache : {keys, values}) {
    TORCH_CHECK(cache.is_cpu() && cache.is_contiguous() && cache.dim() == 4 &&
                    cache.scalar_type() == q.scalar_type() && cache.size(0) >= n &&
                    cache.size(1) == shape.num_kv_heads && cache.size(3) == shape.head_dim,
                "a cache of ", cache.sizes(), " for ", n, " sequences");
    for (const int64_t length : lengths)
      TORCH_CHECK(length > 0 && length <= cache.size(2), "a sequence of ", length, " tokens");
  }
  const at::Tensor in_fp32 = sinks.defined() ? sinks.to(at::kFloat).contiguous() : sinks;
  const float* of_heads = sinks.defined() ? in_fp32.const_data_ptr<float>() : nullptr;
  at::Tensor out = at::empty_like(q);
  if (q.scalar_type() == at::kFloat)
    attend<float>(q, keys, values, lengths, shape, of_heads, out);
  else
    attend<uint16_t>(q, keys, values, lengths, shape, of_heads, out);
  return out;
}

}  // namespace sftrun::kernels
