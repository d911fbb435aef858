#include "blocks/block.h"

namespace sftrun::spec::mlp {
namespace {

bool is_in(const ArchSpec& arch, int64_t layer) {
  return !arch.layers.at(static_cast<size_t>(layer)).sparse || arch.mixture.beside_dense;
}

LinearSpec outer(const ArchSpec& arch, const char* role, const char* gguf, int64_t inner,
                 size_t matrices) {
  return {.role = role,
          .module = std::string("mlp.") + role + "_proj",
          .gguf = gguf,
          .in_features = arch.hidden_size,
          .out_features = static_cast<int64_t>(matrices) * inner,
          .bias = arch.mlp_bias,
          .division = Division::kOutputs,
          .segments = std::vector<Segment>(matrices, {Segment::By::kChannels, inner}),
          .shares_name_with_experts = true,
          .joint = matrices == 1 ? "gate_up" : ""};
}

std::vector<LinearSpec> linears_of(const ArchSpec& arch, int64_t layer) {
  const int64_t inner = intermediate_size(arch, layer);
  std::vector<LinearSpec> linears;
  if (arch.fused_projections) {
    linears = {outer(arch, "gate_up", "ffn_up", inner, 2)};  // Phi-3's name in GGUF files
  } else {
    linears = {outer(arch, "gate", "ffn_gate", inner, 1), outer(arch, "up", "ffn_up", inner, 1)};
  }
  linears.push_back({.role = "down",
                     .module = "mlp.down_proj",
                     .gguf = "ffn_down",
                     .in_features = inner,
                     .out_features = arch.hidden_size,
                     .bias = arch.mlp_bias,
                     .division = Division::kInputs,
                     .segments = {{Segment::By::kChannels, inner}},
                     .shares_name_with_experts = true,
                     .joint = "down"});
  return linears;
}

BlockTensors tensors(const ArchSpec& arch, int64_t layer) {
  BlockTensors block{.linears = linears_of(arch, layer)};
  const bool is_alone = !arch.layers.at(static_cast<size_t>(layer)).sparse;
  if (is_alone) block.norms = norms_of_feed_forward(arch);
  return block;
}

void require_divisible(const ArchSpec& arch, int64_t layer, const Requirements& model) {
  model.has_channels(intermediate_size(arch, layer), "inner channels of an MLP");
}

/// Sizes that no layer uses need not be divisible.
void take_part(ArchSpec& part, const RankSizes& sizes) {
  for (int64_t layer = 0; layer < part.num_layers; ++layer) {
    if (!is_in(part, layer)) continue;
    int64_t& inner = part.layers[static_cast<size_t>(layer)].intermediate_size;
    inner = intermediate_size(part, layer);
    sizes.channels(inner);
  }
}

}  // namespace

extern const Block kBlock;
const Block kBlock{.name = "mlp",
                   .is_in = is_in,
                   .tensors = tensors,
                   .require_divisible = require_divisible,
                   .take_part = take_part};

}  // namespace sftrun::spec::mlp
