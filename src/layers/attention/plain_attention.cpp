#include <ATen/ATen.h>

#include <cmath>

#include "linear/plain_linears.h"
#include "sftrun/layers/attention.h"

/// Reference numerics with plain operations: transformers' modeling_llama.py, with the differences of
/// other families.
namespace sftrun::layers {
namespace {

/// Per head or over all heads together, whichever the norm is for.
at::Tensor norm_heads(const at::Tensor& x, const Norm& norm) {
  return norm.defined() ? rms_norm(x.view({-1, norm.weight.numel()}), norm).view_as(x) : x;
}

/// transformers' apply_rotary_pos_emb: x cos + rotate_half(x) sin, on each head's first channels.
at::Tensor rotate_heads(const at::Tensor& x, const Attention& attention,
                        const BatchContext& batch) {
  const int64_t head_dim = attention.shape.head_dim;
  const at::Tensor heads = x.view({x.size(0), -1, head_dim});
  if (attention.rope < 0) return heads;
  const kernels::RopeAngles& angles = batch.ropes[static_cast<size_t>(attention.rope)];
  const int64_t half = angles.cos.size(1);
  const at::Tensor cos = at::cat({angles.cos, angles.cos}, -1).unsqueeze(1).to(x.scalar_type());
  const at::Tensor sin = at::cat({angles.sin, angles.sin}, -1).unsqueeze(1).to(x.scalar_type());
  const at::Tensor turning = heads.narrow(-1, 0, 2 * half);
  const at::Tensor low = turning.narrow(-1, 0, half), high = turning.narrow(-1, half, half);
  const at::Tensor rotated = turning * cos + at::cat({-high, low}, -1) * sin;
  if (2 * half == head_dim) return rotated;
  return at::cat({rotated, heads.narrow(-1, 2 * half, head_dim - 2 * half)}, -1);
}

/// One document: q [heads, S, head_dim], k and v [kv_heads, S, head_dim].
/// scaled_dot_product_attention, transformers' default, where it supports the shape; else as
/// eager_attention_forward.
/// @param key_ends [S] int32: exclusive ends of the keys that the rows see; undefined: causal
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const kernels::AttentionShape& shape, const at::Tensor& sinks,
                  const at::Tensor& key_ends) {
  if (shape.softcap == 0 && shape.window == 0 && !sinks.defined() && !key_ends.defined()) {
    return at::scaled_dot_product_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0),
                                            std::nullopt, 0.0, /*is_causal=*/true, shape.scale,
                                            /*enable_gqa=*/true)
        .squeeze(0);
  }
  const int64_t length = q.size(1), group = shape.num_heads / shape.num_kv_heads;
  at::Tensor scores = at::matmul(q, k.repeat_interleave(group, 0).transpose(1, 2)) * shape.scale;
  if (shape.softcap > 0) scores = at::tanh(scores / shape.softcap) * shape.softcap;
  const at::Tensor all = at::ones({length, length}, q.options().dtype(at::kBool));
  at::Tensor hidden = key_ends.defined()
                          ? at::arange(length, key_ends.options()) >= key_ends.unsqueeze(1)
                          : all.triu(1);
  if (shape.window > 0) hidden = hidden.logical_or(all.tril(-shape.window));
  scores = scores.masked_fill(hidden, -INFINITY);
  if (sinks.defined())  // one extra score without a value
    scores = at::cat({scores, sinks.view({-1, 1, 1}).expand({-1, length, 1})}, -1);
  const at::Tensor weights =
      at::softmax(scores, -1, at::kFloat).to(q.scalar_type()).narrow(-1, 0, length);
  return at::matmul(weights, v.repeat_interleave(group, 0));
}

at::Tensor attend_documents(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Attention& attention, const BatchContext& batch) {
  const kernels::AttentionShape& shape = attention.shape;
  const auto heads_of = [&](const at::Tensor& y) {
    return y.view({y.size(0), -1, shape.head_dim});
  };
  const at::Tensor q_heads = heads_of(q), k_heads = heads_of(k), v_heads = heads_of(v);
  const at::Tensor sinks = value_of(attention.sinks.parameter, attention.sinks.weight);
  const at::Tensor key_ends = kernels::sees_both_ways(batch, shape)
                                  ? kernels::key_ends_of(batch, q.size(0), q.device())
                                  : at::Tensor();
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    const int64_t begin = batch.cu_seqlens[i], length = batch.cu_seqlens[i + 1] - begin;
    const auto document = [&](const at::Tensor& x) {
      return x.narrow(0, begin, length).transpose(0, 1);
    };
    const at::Tensor ends_of_rows =
        key_ends.defined() ? key_ends.narrow(0, begin, length) - begin : key_ends;
    const at::Tensor out =
        attend(document(q_heads), document(k_heads), document(v_heads), shape, sinks, ends_of_rows);
    outputs.push_back(out.transpose(0, 1).reshape({length, shape.num_heads * shape.head_dim}));
  }
  return at::cat(outputs, 0);
}

/// Outputs of q, k and v; of layers that reuse keys only of q.
std::vector<at::Tensor> projections(const Attention& a, const at::Tensor& in,
                                    const BatchContext& batch) {
  if (!a.fuses_qkv()) {
    std::vector<at::Tensor> qkv = linears(in, {&a.q}, batch);
    if (a.borrows_keys()) return qkv;
    qkv.push_back(linears(in, {&a.k}, batch)[0]);
    qkv.push_back(a.value_is_key ? qkv[1] : linears(in, {&a.v}, batch)[0]);
    return qkv;
  }
  std::vector<at::Tensor> qkv = linears(in, {&a.qkv}, batch)[0].split_with_sizes(
      {a.query_size(), a.key_size(), a.key_size()}, 1);
  for (at::Tensor& part : qkv) part = part.contiguous();
  return qkv;
}

}  // namespace

at::Tensor Attention::plain(const at::Tensor& x, const BatchContext& batch,
                            SharedKeys& shared) const {
  std::vector<at::Tensor> qkv = projections(*this, x, batch);
  at::Tensor gate;
  if (gates_output) {
    const auto both = qkv[0].view({x.size(0), -1, 2 * shape.head_dim}).chunk(2, -1);
    qkv[0] = both[0].reshape({x.size(0), -1});
    gate = both[1].reshape({x.size(0), -1});
  }
  const auto flat_rotated = [&](const at::Tensor& heads) {
    return rotate_heads(heads, *this, batch).reshape({x.size(0), -1});
  };
  if (!borrows_keys())
    shared = {flat_rotated(norm_heads(qkv[1], k_norm)), norm_heads(qkv[2], v_norm)};
  at::Tensor attended =
      attend_documents(flat_rotated(norm_heads(qkv[0], q_norm)), shared.k, shared.v, *this, batch);
  if (gate.defined()) attended = attended * at::sigmoid(gate);
  return linears(attended, {&output}, batch)[0];
}

}  // namespace sftrun::layers
