#include "blocks/block.h"

namespace sftrun::spec::experts {
namespace {

bool is_in(const ArchSpec& arch, int64_t layer) {
  return arch.layers.at(static_cast<size_t>(layer)).sparse;
}

LinearSpec router_of(const ArchSpec& arch) {
  const bool is_gpt_oss = arch.mixture.files == ExpertFiles::kGptOss;
  LinearSpec router{.role = "router",
                    .module = arch.mixture.beside_dense ? "router.proj"
                              : is_gpt_oss              ? "mlp.router"
                                                        : "mlp.gate",
                    .gguf = "ffn_gate_inp",
                    .in_features = arch.hidden_size,
                    .out_features = arch.mixture.num_experts,
                    .bias = arch.mixture.bias,
                    .is_router = true};
  if (arch.mixture.files == ExpertFiles::kMixtral) router.stored_as = "block_sparse_moe.gate";
  return router;
}

/// Applied to every token.
void add_shared_expert(std::vector<LinearSpec>& linears, const ArchSpec& arch) {
  const int64_t hidden = arch.hidden_size, inner = arch.mixture.shared_size;
  if (inner == 0) return;
  const std::vector<Segment> channels = {{Segment::By::kChannels, inner}};
  const auto outer = [&](const char* role, const char* module, const char* gguf) {
    return LinearSpec{.role = role,
                      .module = module,
                      .gguf = gguf,
                      .in_features = hidden,
                      .out_features = inner,
                      .division = Division::kOutputs,
                      .segments = channels};
  };
  linears.push_back(outer("shared_gate", "mlp.shared_expert.gate_proj", "ffn_gate_shexp"));
  linears.push_back(outer("shared_up", "mlp.shared_expert.up_proj", "ffn_up_shexp"));
  linears.push_back({.role = "shared_down",
                     .module = "mlp.shared_expert.down_proj",
                     .gguf = "ffn_down_shexp",
                     .in_features = inner,
                     .out_features = hidden,
                     .division = Division::kInputs,
                     .segments = channels});
  linears.push_back({.role = "shared_router",
                     .module = "mlp.shared_expert_gate",
                     .gguf = "ffn_gate_inp_shexp",
                     .in_features = hidden,
                     .out_features = 1});
}

std::vector<std::string> names_in_files(const std::vector<const char*>& matrices,
                                        const char* module) {
  std::vector<std::string> names;
  for (const char* matrix : matrices)
    names.push_back(std::string(module) + ".experts.{}." + matrix + ".weight");
  return names;
}

/// Sets how files store the experts: each matrix apart, or one tensor in the files' order.
/// @param gate_up whether it is that matrix, not the down matrix
void set_files(ExpertSpec& experts, const ArchSpec& arch, bool gate_up) {
  const int64_t count = arch.mixture.num_experts, out = experts.out_features,
                in = experts.in_features;
  switch (arch.mixture.files) {
    case ExpertFiles::kWhole:
      return;
    case ExpertFiles::kEach:
      experts.matrices = gate_up ? names_in_files({"gate_proj", "up_proj"}, "mlp")
                                 : names_in_files({"down_proj"}, "mlp");
      return;
    case ExpertFiles::kMixtral:
      experts.matrices = gate_up ? names_in_files({"w1", "w3"}, "block_sparse_moe")
                                 : names_in_files({"w2"}, "block_sparse_moe");
      return;
    case ExpertFiles::kTransposed:
      experts.layout = {{count, out, in}, {0, 2, 1}, {count, in, out}};
      return;
    case ExpertFiles::kGptOss:
      experts.rows_alternate = gate_up;
      experts.layout = gate_up ? FileLayout{{count, 2, out / 2, in}, {0, 3, 2, 1}, {count, in, out}}
                               : FileLayout{{count, out, in}, {0, 2, 1}, {count, in, out}};
      return;
  }
}

std::vector<ExpertSpec> experts_of(const ArchSpec& arch) {
  const int64_t hidden = arch.hidden_size, inner = arch.mixture.intermediate_size;
  const std::string prefix = arch.mixture.beside_dense ? "experts." : "mlp.experts.";
  const Segment channels{Segment::By::kChannels, inner};
  ExpertSpec gate_up{.role = "gate_up",
                     .module = prefix + "gate_up_proj",
                     .in_features = hidden,
                     .out_features = 2 * inner,
                     .bias = arch.mixture.bias,
                     .division = Division::kOutputs,
                     .segments = {channels, channels}},
      down{.role = "down",
           .module = prefix + "down_proj",
           .in_features = inner,
           .out_features = hidden,
           .bias = arch.mixture.bias,
           .division = Division::kInputs,
           .segments = {channels}};
  set_files(gate_up, arch, /*gate_up=*/true);
  set_files(down, arch, /*gate_up=*/false);
  return {gate_up, down};
}

/// The dense MLP and the experts each have norms of their own, and the router scales its input.
void add_parts_beside_dense(BlockTensors& block, const ArchSpec& arch) {
  const int64_t hidden = arch.hidden_size;
  const auto norm = [&](const char* role, const char* module, const char* gguf) {
    block.norms.push_back({.role = role, .module = module, .gguf = gguf, .size = hidden});
  };
  norm("dense_out", "post_feedforward_layernorm_1", "post_ffw_norm_1");
  norm("experts_in", "pre_feedforward_layernorm_2", "pre_ffw_norm_2");
  norm("experts_out", "post_feedforward_layernorm_2", "post_ffw_norm_2");
  block.weights = {{.role = "router_scale",
                    .name = "router.scale",
                    .gguf = "ffn_gate_inp.scale",
                    .shape = {hidden}},
                   {.role = "expert_scale",
                    .name = "router.per_expert_scale",
                    .gguf = "ffn_down_exps.scale",
                    .shape = {arch.mixture.num_experts}}};
}

BlockTensors tensors(const ArchSpec& arch, int64_t /*layer*/) {
  BlockTensors block{.norms = norms_of_feed_forward(arch),
                     .linears = {router_of(arch)},
                     .experts = experts_of(arch)};
  add_shared_expert(block.linears, arch);
  if (arch.mixture.beside_dense) add_parts_beside_dense(block, arch);
  return block;
}

void require_divisible(const ArchSpec& arch, int64_t /*layer*/, const Requirements& model) {
  model.has_channels(arch.mixture.intermediate_size, "inner channels of an expert");
  model.has_channels(arch.mixture.shared_size, "inner channels of the shared expert");
}

void take_part(ArchSpec& part, const RankSizes& sizes) {
  sizes.channels(part.mixture.intermediate_size);
  sizes.channels(part.mixture.shared_size);
}

}  // namespace

extern const Block kBlock;
const Block kBlock{.name = "experts",
                   .is_in = is_in,
                   .tensors = tensors,
                   .require_divisible = require_divisible,
                   .take_part = take_part};

}  // namespace sftrun::spec::experts
