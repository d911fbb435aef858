#include "composed_attention.h"

#include <ATen/ATen.h>

#include <limits>

namespace sftrun::kernels {
namespace {

/// Heads [first, first + count) of one document's rows, as [count, S, head_dim] fp32.
class HeadRange {
 public:
  HeadRange(int64_t begin, int64_t length, int64_t head_dim)
      : begin_(begin), length_(length), head_dim_(head_dim) {}

  at::Tensor view(const at::Tensor& x, int64_t first, int64_t count) const {
    return x.narrow(0, begin_, length_)
        .narrow(1, first * head_dim_, count * head_dim_)
        .view({length_, count, head_dim_})
        .transpose(0, 1);
  }
  /// Rows of lse [heads, T].
  at::Tensor rows(const at::Tensor& x, int64_t first, int64_t count) const {
    return x.narrow(0, first, count).narrow(1, begin_, length_);
  }
  at::Tensor read(const at::Tensor& x, int64_t first, int64_t count) const {
    return view(x, first, count).to(at::kFloat);
  }

 private:
  int64_t begin_, length_, head_dim_;
};

/// True where query [row] does not see key [column].
/// @param ends [S] int32: exclusive ends of the keys that the rows see; undefined: their own row's
at::Tensor hidden_pairs(int64_t length, int64_t window, const at::Tensor& ends,
                        const at::Tensor& like) {
  const at::Tensor all = at::ones({length, length}, like.options().dtype(at::kBool));
  const at::Tensor later =
      ends.defined() ? at::arange(length, ends.options()) >= ends.unsqueeze(1) : all.triu(1);
  return window > 0 ? later.logical_or(all.tril(-window)) : later;
}

struct DocumentScores {
  at::Tensor of_keys;  // [group, S, S], -inf where masked
  at::Tensor slope;    // derivative of the soft cap; undefined without one
};

DocumentScores scores_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& hidden,
                         const AttentionShape& shape) {
  at::Tensor scores = at::matmul(q, k.transpose(1, 2)).mul_(shape.scale), slope;
  if (shape.softcap > 0) {
    const at::Tensor tanh_of = scores.div_(shape.softcap).tanh_();
    slope = 1 - tanh_of * tanh_of;
    scores = tanh_of.mul_(shape.softcap);
  }
  scores.masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  return {scores, slope};
}

/// Calls body(heads, kv_head, mask) for every key/value head of every document.
template <typename Body>
void for_groups(const at::Tensor& q, const BatchMetadata& batch, const AttentionShape& s,
                Body&& body) {
  const at::Tensor ends =
      sees_both_ways(batch, s) ? key_ends_of(batch, q.size(0), q.device()) : at::Tensor();
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    const int64_t begin = batch.cu_seqlens[i], length = batch.cu_seqlens[i + 1] - begin;
    const HeadRange heads(begin, length, s.head_dim);
    const at::Tensor of_rows = ends.defined() ? ends.narrow(0, begin, length) - begin : ends;
    const at::Tensor hidden = hidden_pairs(length, s.window, of_rows, q);
    for (int64_t kv = 0; kv < s.num_kv_heads; ++kv) body(heads, kv, hidden);
  }
}

}  // namespace

AttentionOutput composed_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const BatchMetadata& batch,
                                           const AttentionShape& s) {
  AttentionOutput result;
  result.out = at::empty_like(q);
  const int64_t group = s.num_heads / s.num_kv_heads;
  result.lse = {at::empty({s.num_heads, q.size(0)}, q.options().dtype(at::kFloat))};
  for_groups(q, batch, s, [&](const HeadRange& heads, int64_t kv, const at::Tensor& hidden) {
    const auto [scores, slope] =
        scores_of(heads.read(q, kv * group, group), heads.read(k, kv, 1), hidden, s);
    heads.rows(result.lse[0], kv * group, group).copy_(scores.logsumexp(-1));
    heads.view(result.out, kv * group, group)
        .copy_(at::matmul(at::softmax(scores, -1), heads.read(v, kv, 1)));
  });
  return result;
}

AttentionGrads composed_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                           const at::Tensor& k, const at::Tensor& v,
                                           const AttentionOutput& saved, const BatchMetadata& batch,
                                           const AttentionShape& s) {
  AttentionGrads grads{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const int64_t group = s.num_heads / s.num_kv_heads;
  for_groups(q, batch, s, [&](const HeadRange& heads, int64_t kv, const at::Tensor& hidden) {
    const at::Tensor queries = heads.read(q, kv * group, group), keys = heads.read(k, kv, 1),
                     d = heads.read(d_out, kv * group, group);
    const auto [scores, slope] = scores_of(queries, keys, hidden, s);
    const at::Tensor p =
        at::exp(scores - heads.rows(saved.lse[0], kv * group, group).unsqueeze(-1));
    const at::Tensor delta =
        (d * heads.read(saved.out, kv * group, group)).sum(-1, /*keepdim=*/true);
    at::Tensor ds = at::matmul(d, heads.read(v, kv, 1).transpose(1, 2)).sub_(delta).mul_(p);
    if (slope.defined()) ds.mul_(slope);
    ds.mul_(s.scale);
    heads.view(grads.dq, kv * group, group).copy_(at::matmul(ds, keys));
    heads.view(grads.dk, kv, 1).copy_(at::matmul(ds.transpose(1, 2), queries).sum(0, true));
    heads.view(grads.dv, kv, 1).copy_(at::matmul(p.transpose(1, 2), d).sum(0, true));
  });
  return grads;
}

}  // namespace sftrun::kernels
