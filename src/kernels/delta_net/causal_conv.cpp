#include "sftrun/kernels/causal_conv.h"

#include <ATen/ATen.h>

#include "chunks.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::kernels {
namespace {

// Chunks per part. On CPU a part's rows and sums then fit the L2 cache.
constexpr int64_t kCpuPart = 2, kCudaPart = 1 << 20;

/// Rows of chunks [first, first + count) preceded by `before` earlier rows: [count, before +
/// kChunk, channels] fp32.
at::Tensor rows_with_those_before(const at::Tensor& x, int64_t before, const Chunks& chunks,
                                  int64_t first, int64_t count) {
  const at::Tensor tokens = chunks.tokens.narrow(0, first, count);
  const at::Tensor earlier = chunks.tokens.index_select(0, chunks.previous.narrow(0, first, count))
                                 .narrow(1, kChunk - before, before);
  at::Tensor rows = x.index_select(0, at::cat({earlier, tokens}, 1).view(-1))
                        .to(at::kFloat)
                        .unflatten(0, {count, before + kChunk});
  const int64_t documents_begin = std::clamp<int64_t>(chunks.steps[0] - first, 0, count);
  rows.narrow(0, 0, documents_begin).narrow(1, 0, before).zero_();
  return rows;
}

/// Rows of y [N, kChunk, channels] followed by `after` later rows.
at::Tensor rows_with_those_after(const at::Tensor& y, int64_t after, const Chunks& chunks,
                                 int64_t first, int64_t count) {
  const at::Tensor following =
      y.narrow(1, 0, after).index_select(0, chunks.following.narrow(0, first, count));
  following.mul_(chunks.has_following.narrow(0, first, count).view({count, 1, 1}));
  return at::cat({y.narrow(0, first, count), following}, 1);
}

/// [kernel, channels] fp32: the weights of each tap contiguous.
at::Tensor taps_of(const at::Tensor& weight) {
  SFTRUN_CHECK(weight.size(1) - 1 <= kChunk);
  return weight.to(at::kFloat).t().contiguous();
}

}  // namespace

at::Tensor causal_conv_forward(const at::Tensor& x, const at::Tensor& weight,
                               const Chunks& chunks) {
  const ProfileRange range("causal_conv_forward");
  const at::Tensor taps = taps_of(weight);
  const int64_t kernel = taps.size(0);
  at::Tensor y = at::empty({chunks.count(), kChunk, x.size(1)}, x.options().dtype(at::kFloat));
  for_parts(x.device(), chunks.count(), kCpuPart, kCudaPart, [&](int64_t first, int64_t count) {
    const at::Tensor rows = rows_with_those_before(x, kernel - 1, chunks, first, count);
    at::Tensor part = y.narrow(0, first, count);
    at::mul_out(part, rows.narrow(1, 0, kChunk), taps[0]);
    for (int64_t j = 1; j < kernel; ++j) part.addcmul_(rows.narrow(1, j, kChunk), taps[j]);
  });
  return y;
}

ConvGrads causal_conv_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                               const Chunks& chunks, bool needs_dx, bool needs_dweight) {
  const ProfileRange range("causal_conv_backward");
  const at::Tensor taps = taps_of(weight);
  const int64_t kernel = taps.size(0), channels = taps.size(1);
  const at::Tensor dx = needs_dx ? at::empty(dy.sizes(), x.options()) : at::Tensor();
  // One sum per chunk, added afterwards in a fixed order.
  const at::Tensor d_taps =
      needs_dweight ? at::empty({chunks.count(), kernel, channels}, dy.options()) : at::Tensor();
  for_parts(x.device(), chunks.count(), kCpuPart, kCudaPart, [&](int64_t first, int64_t count) {
    if (needs_dx) {
      const at::Tensor rows = rows_with_those_after(dy, kernel - 1, chunks, first, count);
      at::Tensor part = rows.narrow(1, 0, kChunk) * taps[kernel - 1];
      for (int64_t j = 1; j < kernel; ++j)
        part.addcmul_(rows.narrow(1, j, kChunk), taps[kernel - 1 - j]);
      dx.narrow(0, first, count).copy_(part);
    }
    if (!needs_dweight) return;
    const at::Tensor rows = rows_with_those_before(x, kernel - 1, chunks, first, count);
    for (int64_t j = 0; j < kernel; ++j) {
      at::Tensor sum = d_taps.narrow(0, first, count).select(1, j);
      at::sum_out(sum, dy.narrow(0, first, count) * rows.narrow(1, j, kChunk), 1);
    }
  });
  return {needs_dx ? chunks.join(dx) : dx, needs_dweight ? d_taps.sum(0).t() : d_taps};
}

}  // namespace sftrun::kernels
