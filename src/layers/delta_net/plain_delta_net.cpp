#include <ATen/ATen.h>

#include <cmath>

#include "linear/plain_linears.h"
#include "sftrun/layers/delta_net.h"

namespace sftrun::layers {
namespace {

at::Tensor value_of(const Weight& weight) {
  return value_of(weight.parameter, weight.weight);
}

/// One document: x [S, channels], weight [channels, kernel].
at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight) {
  const int64_t channels = weight.size(0), kernel = weight.size(1);
  const at::Tensor y = at::conv1d(x.t().unsqueeze(0), weight.unsqueeze(1), {}, /*stride=*/1,
                                  /*padding=*/kernel - 1, /*dilation=*/1, /*groups=*/channels);
  return at::silu(y.narrow(2, 0, x.size(0))).squeeze(0).t();
}

/// x [S, key_heads * dim] -> [S, value_heads, dim] fp32, L2-normalised per head.
at::Tensor unit_heads(const at::Tensor& x, const DeltaNet& net) {
  const at::Tensor heads = x.reshape({x.size(0), net.num_key_heads, net.key_dim})
                               .repeat_interleave(net.num_value_heads / net.num_key_heads, 1)
                               .to(at::kFloat);
  return heads * at::rsqrt((heads * heads).sum(-1, /*keepdim=*/true) + 1e-6);
}

/// One document: q and k [S, H, K], v [S, H, V], g and beta [S, H], all fp32 -> [S, H, V].
at::Tensor recurrence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& g, const at::Tensor& beta) {
  at::Tensor memory = at::zeros({q.size(1), q.size(2), v.size(2)}, q.options());
  std::vector<at::Tensor> outputs;
  for (int64_t t = 0; t < q.size(0); ++t) {
    memory = memory * g[t].exp().unsqueeze(-1).unsqueeze(-1);
    const at::Tensor remembered = (memory * k[t].unsqueeze(-1)).sum(-2);
    const at::Tensor delta = (v[t] - remembered) * beta[t].unsqueeze(-1);
    memory = memory + k[t].unsqueeze(-1) * delta.unsqueeze(-2);
    outputs.push_back((memory * q[t].unsqueeze(-1)).sum(-2));
  }
  return at::stack(outputs);
}

/// RMSNormGated: norm first, then gate.
at::Tensor plain_gated_norm(const at::Tensor& x, const at::Tensor& z, const Norm& norm) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normed = wide * at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + norm.eps);
  const at::Tensor weighted =
      (norm.offset + value_of(norm.parameter, norm.weight)) * normed.to(x.scalar_type());
  return (weighted * at::silu(z.to(at::kFloat))).to(x.scalar_type());
}

}  // namespace

at::Tensor plain_delta_net(const DeltaNet& net, const at::Tensor& x, const BatchContext& batch) {
  const auto projected = linears(x, {&net.in_qkv, &net.in_z, &net.in_b, &net.in_a}, batch);
  const at::Tensor z = projected[1].reshape({-1, net.num_value_heads, net.value_dim});
  const at::Tensor beta = at::sigmoid(projected[2]).to(at::kFloat);
  const at::Tensor g = -value_of(net.a_log).to(at::kFloat).exp() *
                       at::softplus(projected[3].to(at::kFloat) + value_of(net.dt_bias));
  const int64_t keys = net.num_key_heads * net.key_dim;
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    const int64_t begin = batch.cu_seqlens[i], length = batch.cu_seqlens[i + 1] - begin;
    if (length == 0) continue;
    const at::Tensor convolved =
        convolve(projected[0].narrow(0, begin, length), value_of(net.conv));
    const at::Tensor q = unit_heads(convolved.narrow(1, 0, keys), net),
                     k = unit_heads(convolved.narrow(1, keys, keys), net),
                     v = convolved.narrow(1, 2 * keys, convolved.size(1) - 2 * keys)
                             .reshape({length, net.num_value_heads, net.value_dim})
                             .to(at::kFloat);
    outputs.push_back(recurrence(q / std::sqrt(static_cast<double>(net.key_dim)), k, v,
                                 g.narrow(0, begin, length), beta.narrow(0, begin, length)));
  }
  const at::Tensor read = at::cat(outputs).to(x.scalar_type());
  return plain_gated_norm(read, z, net.norm).flatten(1);
}

at::Tensor DeltaNet::plain(const at::Tensor& x, const BatchContext& batch,
                           SharedKeys& /*shared*/) const {
  return linears(plain_delta_net(*this, x, batch), {&output}, batch)[0];
}

}  // namespace sftrun::layers
