#include "blocks/block.h"

namespace sftrun::spec::attention {
namespace {

bool is_in(const ArchSpec& arch, int64_t layer) {
  return arch.layers.at(static_cast<size_t>(layer)).mixer == Mixer::kAttention;
}

bool has_keys(const ArchSpec& arch, int64_t layer) {
  return arch.layers.at(static_cast<size_t>(layer)).keys_of < 0;
}

Segment queries_of(const AttentionSizes& sizes, int64_t rows) {
  return {Segment::By::kHeads, rows, sizes.num_heads};
}

Segment keys_of(const AttentionSizes& sizes) {
  return {Segment::By::kSharedHeads, sizes.keys(), sizes.num_kv_heads};
}

LinearSpec output(const ArchSpec& arch, const AttentionSizes& sizes) {
  return {.role = "o",
          .module = "self_attn.o_proj",
          .gguf = "attn_output",
          .in_features = sizes.queries(),
          .out_features = arch.hidden_size,
          .bias = arch.o_bias,
          .division = Division::kInputs,
          .segments = {queries_of(sizes, sizes.queries())},
          .joint = "o"};
}

/// A matrix of the layer's input.
LinearSpec input(const ArchSpec& arch, std::string_view role, std::string_view gguf,
                 std::vector<Segment> segments) {
  LinearSpec linear{.role = role,
                    .module = fmt::format("self_attn.{}_proj", role),
                    .gguf = gguf,
                    .in_features = arch.hidden_size,
                    .bias = arch.qkv_bias,
                    .division = Division::kOutputs,
                    .segments = std::move(segments),
                    .joint = arch.fused_projections ? "" : "qkv"};
  for (const Segment& segment : linear.segments) linear.out_features += segment.size;
  return linear;
}

std::vector<LinearSpec> linears_of(const ArchSpec& arch, int64_t layer) {
  const AttentionSizes sizes = attention_sizes(arch, layer);
  const Segment keys = keys_of(sizes);
  if (arch.fused_projections) {
    return {input(arch, "qkv", "attn_qkv", {queries_of(sizes, sizes.queries()), keys, keys}),
            output(arch, sizes)};
  }
  const int64_t rows = (arch.attention_gate ? 2 : 1) * sizes.queries();
  std::vector<LinearSpec> linears = {input(arch, "q", "attn_q", {queries_of(sizes, rows)})};
  if (has_keys(arch, layer)) {
    linears.push_back(input(arch, "k", "attn_k", {keys}));
    if (!arch.layers[static_cast<size_t>(layer)].value_is_key)
      linears.push_back(input(arch, "v", "attn_v", {keys}));
  }
  linears.push_back(output(arch, sizes));
  return linears;
}

void add_head_norms(std::vector<NormSpec>& norms, const ArchSpec& arch, int64_t layer) {
  if (arch.qk_norm == QkNorm::kNone) return;
  const bool whole = arch.qk_norm == QkNorm::kWhole;
  const AttentionSizes sizes = attention_sizes(arch, layer);
  norms.push_back({.role = "query",
                   .module = "self_attn.q_norm",
                   .gguf = "attn_q_norm",
                   .size = whole ? sizes.queries() : sizes.head_dim,
                   .per_head = true});
  if (!has_keys(arch, layer)) return;
  norms.push_back({.role = "key",
                   .module = "self_attn.k_norm",
                   .gguf = "attn_k_norm",
                   .size = whole ? sizes.keys() : sizes.head_dim,
                   .per_head = true});
}

BlockTensors tensors(const ArchSpec& arch, int64_t layer) {
  BlockTensors block{.norms = norms_before_mixer(arch), .linears = linears_of(arch, layer)};
  add_head_norms(block.norms, arch, layer);
  add_norms_after_mixer(block.norms, arch);
  if (arch.attention_sinks) {
    block.weights.push_back({.role = "sinks",
                             .name = "self_attn.sinks",
                             .gguf = "attn_sinks.weight",
                             .shape = {arch.num_heads},
                             .segments = {{Segment::By::kHeads, arch.num_heads, arch.num_heads}}});
  }
  return block;
}

void require_divisible(const ArchSpec& arch, int64_t layer, const Requirements& model) {
  const AttentionSizes sizes = attention_sizes(arch, layer);
  model.divides(sizes.num_heads, "attention heads");
  model.divides_or_copies(sizes.num_kv_heads, "key-value heads");
}

void take_part(ArchSpec& part, const RankSizes& sizes) {
  sizes.heads(part.num_heads);
  sizes.shared_heads(part.num_kv_heads);
  for (LayerSpec& layer : part.layers) sizes.shared_heads(layer.num_kv_heads);
}

/// Of queries with keys, and of scores with values; on average half of a sequence is read.
double products(const ArchSpec& arch, int64_t /*layer*/, int64_t seq_len) {
  return static_cast<double>(seq_len * arch.num_heads * arch.head_dim);
}

}  // namespace

extern const Block kBlock;
const Block kBlock{.name = "attention",
                   .is_mixer = true,
                   .is_in = is_in,
                   .tensors = tensors,
                   .require_divisible = require_divisible,
                   .take_part = take_part,
                   .products = products};

}  // namespace sftrun::spec::attention
