#include "blocks/block.h"

namespace sftrun::spec::delta_net {
namespace {

bool is_in(const ArchSpec& arch, int64_t layer) {
  return arch.layers.at(static_cast<size_t>(layer)).mixer == Mixer::kDeltaNet;
}

Segment by_value_heads(const DeltaNetSpec& delta, int64_t size) {
  return {Segment::By::kHeads, size, delta.num_value_heads};
}

/// Of q, k and v.
std::vector<Segment> channels_of(const DeltaNetSpec& delta) {
  const Segment keys{Segment::By::kSharedHeads, delta.keys(), delta.num_key_heads};
  return {keys, keys, by_value_heads(delta, delta.values())};
}

std::vector<LinearSpec> linears_of(const ArchSpec& arch) {
  const DeltaNetSpec& delta = arch.delta_net;
  const auto input = [&](const char* role, const char* gguf, std::vector<Segment> segments) {
    LinearSpec linear{.role = role,
                      .module = std::string("linear_attn.") + role,
                      .gguf = gguf,
                      .in_features = arch.hidden_size,
                      .division = Division::kOutputs,
                      .segments = std::move(segments)};
    for (const Segment& segment : linear.segments) linear.out_features += segment.size;
    return linear;
  };
  const Segment values = by_value_heads(delta, delta.values()),
                heads = by_value_heads(delta, delta.num_value_heads);
  return {input("in_proj_qkv", "attn_qkv", channels_of(delta)),
          input("in_proj_z", "attn_gate", {values}),
          input("in_proj_b", "ssm_beta", {heads}),
          input("in_proj_a", "ssm_alpha", {heads}),
          {.role = "out_proj",
           .module = "linear_attn.out_proj",
           .gguf = "ssm_out",
           .in_features = delta.values(),
           .out_features = arch.hidden_size,
           .division = Division::kInputs,
           .segments = {values},
           .joint = "o"}};
}

std::vector<WeightSpec> weights_of(const DeltaNetSpec& delta) {
  const int64_t channels = delta.channels(), kernel = delta.conv_kernel,
                heads = delta.num_value_heads;
  return {{.role = "conv",
           .name = "linear_attn.conv1d.weight",
           .gguf = "ssm_conv1d.weight",
           .shape = {channels, kernel},
           .shape_in_files = {channels, 1, kernel},
           .segments = channels_of(delta)},
          {.role = "a_log",
           .name = "linear_attn.A_log",
           .gguf = "ssm_a",
           .shape = {heads},
           .segments = {by_value_heads(delta, heads)}},
          {.role = "dt_bias",
           .name = "linear_attn.dt_bias",
           .gguf = "ssm_dt.bias",
           .shape = {heads},
           .tensor_role = TensorRole::kBias,
           .segments = {by_value_heads(delta, heads)}}};
}

BlockTensors tensors(const ArchSpec& arch, int64_t /*layer*/) {
  BlockTensors block{.norms = norms_before_mixer(arch),
                     .weights = weights_of(arch.delta_net),
                     .linears = linears_of(arch)};
  // Over each head of the output; it multiplies by its weight in every family.
  block.norms.push_back({.role = "norm",
                         .module = "linear_attn.norm",
                         .gguf = "ssm_norm",
                         .size = arch.delta_net.value_dim,
                         .per_head = true,
                         .adds_one = false});
  add_norms_after_mixer(block.norms, arch);
  return block;
}

void require_divisible(const ArchSpec& arch, int64_t /*layer*/, const Requirements& model) {
  model.divides_or_copies(arch.delta_net.num_key_heads, "key heads in its delta nets");
  model.divides(arch.delta_net.num_value_heads, "value heads in its delta nets");
}

void take_part(ArchSpec& part, const RankSizes& sizes) {
  sizes.shared_heads(part.delta_net.num_key_heads);
  sizes.heads(part.delta_net.num_value_heads);
}

}  // namespace

extern const Block kBlock;
const Block kBlock{.name = "delta_net",
                   .is_mixer = true,
                   .is_in = is_in,
                   .tensors = tensors,
                   .require_divisible = require_divisible,
                   .take_part = take_part,
                   .has_state = true};

}  // namespace sftrun::spec::delta_net
