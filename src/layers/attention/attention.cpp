#include "sftrun/layers/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "attention/attention_cache.h"
#include "attention/attention_pass.h"
#include "sftrun/layers/layer.h"

namespace sftrun::layers {
namespace {

/// Rows [first, first + count) of each.
AttentionInputs narrow(const AttentionInputs& inputs, int64_t first, int64_t count) {
  const auto part = [&](const at::Tensor& x) {
    return x.defined() ? x.narrow(0, first, count) : x;
  };
  return {part(inputs.q), part(inputs.k), part(inputs.v), part(inputs.gate)};
}

AttentionCache& cache_of(const Attention& attention, const Layer& layer,
                         const GenerationPass& pass) {
  const int64_t owner = attention.borrows_keys() ? attention.keys_of : layer.index;
  return static_cast<AttentionCache&>(*pass.caches[static_cast<size_t>(owner)]);
}

at::Tensor attend_prefill(const Attention& attention, const AttentionInputs& in,
                          AttentionCache& cache, const PrefillRows& prefill) {
  for (size_t i = 0; !attention.borrows_keys() && i < prefill.rows.size(); ++i) {
    const int64_t first = prefill.cu_seqlens[i], count = prefill.cu_seqlens[i + 1] - first;
    cache.store_sequence(static_cast<int64_t>(prefill.rows[i]), in.k.narrow(0, first, count),
                         in.v.narrow(0, first, count));
  }
  return kernels::attention_forward(in.q, in.k, in.v, *prefill.context, attention.shape,
                                    attention.sinks.weight)
      .out;
}

at::Tensor attend_decode(const Attention& attention, const AttentionInputs& in,
                         AttentionCache& cache, const DecodeRows& decode) {
  if (!attention.borrows_keys()) cache.store_tokens(decode.positions, in.k, in.v);
  return attend_cached(attention, in.q, cache, *decode.masks);
}

}  // namespace

BlockMembers Attention::members() {
  return {.norms = {{"query", &q_norm}, {"key", &k_norm}},
          .weights = {{"sinks", place_of(sinks)}},
          .linears = {{"q", &q}, {"k", &k}, {"v", &v}, {"qkv", &qkv}, {"o", &output}}};
}

/// q, k and v are joined where they are separate tensors with optional norms per head, and nothing
/// else uses them.
std::vector<Joinable> Attention::joints() {
  const auto is_of_heads = [&](const Norm& norm) {
    return !norm.defined() || norm.weight.numel() == shape.head_dim;
  };
  const bool reads_heads_alone = !fuses_qkv() && !borrows_keys() && !shares_kv && !value_is_key &&
                                 !gates_output && !v_norm.defined() && is_of_heads(q_norm) &&
                                 is_of_heads(k_norm);
  if (!reads_heads_alone) return {{&joint_qkv, {}}};
  return {{&joint_qkv, {&q, &k, &v}}};
}

std::unique_ptr<MixerPass> Attention::pass(const Layer& layer, const BatchContext& batch) const {
  return std::make_unique<AttentionPass>(layer, *this, batch);
}

std::unique_ptr<LayerCache> Attention::make_cache(const at::TensorOptions& options) const {
  if (borrows_keys()) return nullptr;
  return std::make_unique<AttentionCache>(shape, options);
}

at::Tensor Attention::generate(const Layer& layer, const at::Tensor& x,
                               const GenerationPass& pass) const {
  AttentionPass block(layer, *this, pass.context);
  const AttentionInputs inputs = block.project(x);
  AttentionCache& cache = cache_of(*this, layer, pass);
  const int64_t num_decoded = pass.decode.count, num_read = pass.prefill.count();
  std::vector<at::Tensor> parts;
  if (num_decoded > 0)
    parts.push_back(attend_decode(*this, narrow(inputs, 0, num_decoded), cache, pass.decode));
  if (num_read > 0)
    parts.push_back(
        attend_prefill(*this, narrow(inputs, num_decoded, num_read), cache, pass.prefill));
  const at::Tensor attended = parts.size() == 1 ? parts[0] : at::cat(parts);
  return block.add_attended(x, gated_attention(attended, inputs.gate));
}

namespace attention {
namespace {

bool has_borrowers(const spec::ArchSpec& arch, int64_t index) {
  return std::any_of(arch.layers.begin(), arch.layers.end(),
                     [&](const spec::LayerSpec& layer) { return layer.keys_of == index; });
}

}  // namespace

std::unique_ptr<Mixer> make(const spec::ArchSpec& arch, int64_t index,
                            const MixerOptions& options) {
  const spec::LayerSpec& spec = arch.layers[static_cast<size_t>(index)];
  const spec::AttentionSizes sizes = spec::attention_sizes(arch, index);
  auto attention = std::make_unique<Attention>();
  attention->shape = {.num_heads = sizes.num_heads,
                      .num_kv_heads = sizes.num_kv_heads,
                      .head_dim = sizes.head_dim,
                      .scale = arch.attention_scale > 0
                                   ? arch.attention_scale
                                   : 1.0 / std::sqrt(static_cast<double>(sizes.head_dim)),
                      .window = spec.window,
                      .softcap = arch.attention_softcap,
                      .on_cuda = options.attention,
                      .both_ways = spec.both_ways};
  attention->keys_of = spec.keys_of;
  attention->shares_kv = has_borrowers(arch, index);
  attention->value_is_key = spec.value_is_key;
  attention->gates_output = arch.attention_gate;
  attention->rope = spec.rope;
  if (arch.value_norm && spec.keys_of < 0) {  // without a weight of its own
    attention->v_norm.eps = arch.rms_norm_eps;
    attention->v_norm.weight =
        at::ones({sizes.head_dim}, at::TensorOptions().dtype(options.dtype).device(options.device));
  }
  return attention;
}

}  // namespace attention
}  // namespace sftrun::layers
