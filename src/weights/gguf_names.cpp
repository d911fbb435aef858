#include "gguf_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "sftrun/core/error.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::weights {
std::map<std::string, std::string> gguf_names(const spec::ArchSpec& arch) {
  std::map<std::string, std::string> names = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"},
      {"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
      {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight"},
      {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
  };
  const auto add = [&](int64_t layer, const std::string& module, std::string_view name) {
    for (const char* kind : {"weight", "bias"}) {
      names[fmt::format("model.layers.{}.{}.{}", layer, module, kind)] =
          fmt::format("blk.{}.{}.{}", layer, name, kind);
    }
  };
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const spec::BlockTensors& block : spec::layer_blocks(arch, layer)) {
      for (const spec::NormSpec& norm : block.norms)
        add(layer, norm.module,
            norm.gguf.empty() ? spec::gguf_feed_forward_norm(arch) : std::string(norm.gguf));
      for (const spec::WeightSpec& weight : block.weights) {
        names[spec::name_in_layer(arch, layer, weight.name)] =
            fmt::format("blk.{}.{}", layer, weight.gguf);
      }
      for (const spec::LinearSpec& linear : block.linears) add(layer, linear.module, linear.gguf);
    }
  }
  return names;
}

int64_t gguf_layer(const std::string& name) {
  constexpr std::string_view kBlock = "blk.";
  int64_t layer = -1;
  if (name.starts_with(kBlock))
    std::from_chars(name.data() + kBlock.size(), name.data() + name.size(), layer);
  return layer;
}

namespace {

constexpr std::array<std::string_view, 3> kQkv = {".attn_q.", ".attn_k.", ".attn_v."};

/// 0 for q, 1 for k, 2 for v; 3 for other tensors.
size_t place_in_qkv(const std::string& name) {
  return static_cast<size_t>(
      std::find_if(kQkv.begin(), kQkv.end(),
                   [&](std::string_view part) { return name.find(part) != std::string::npos; }) -
      kQkv.begin());
}

}  // namespace

std::string gguf_fused_name(const std::string& name) {
  const size_t place = place_in_qkv(name);
  if (place == kQkv.size()) return {};
  std::string fused = name;
  return fused.replace(name.find(kQkv[place]), kQkv[place].size(), ".attn_qkv.");
}

QkvRows qkv_rows(const spec::ArchSpec& arch, int64_t layer, const std::string& name) {
  const spec::AttentionSizes sizes = spec::attention_sizes(arch, layer);
  const int64_t queries = (arch.attention_gate ? 2 : 1) * sizes.queries();
  const std::array<int64_t, 3> first = {0, queries, queries + sizes.keys()};
  return {first.at(place_in_qkv(name)), queries + 2 * sizes.keys()};
}

std::set<std::string> gguf_unused(const spec::ArchSpec& arch) {
  std::set<std::string> names;
  for (size_t layer = 0; layer < arch.layers.size(); ++layer) {
    if (arch.layers[layer].keys_of < 0) continue;
    for (const char* name : {"attn_k", "attn_v", "attn_k_norm"})
      names.insert(fmt::format("blk.{}.{}.weight", layer, name));
  }
  return names;
}

bool belongs_to_experts(const spec::TensorSpec& tensor) {
  return tensor.name.find(".experts.") != std::string::npos;
}

namespace {

bool is_gate_up(const spec::TensorSpec& experts) {
  return experts.name.find(".gate_up_proj") != std::string::npos;
}

std::string name_of_experts(const spec::TensorSpec& experts, const char* name) {
  const char* kind = experts.role == spec::TensorRole::kBias ? "bias" : "weight";
  return fmt::format("blk.{}.{}.{}", experts.layer, name, kind);
}

}  // namespace

std::vector<std::string> gguf_expert_names(const spec::TensorSpec& experts) {
  if (!is_gate_up(experts)) return {name_of_experts(experts, "ffn_down_exps")};
  if (experts.name.find(".mlp.") == std::string::npos) return {gguf_fused_expert_name(experts)};
  return {name_of_experts(experts, "ffn_gate_exps"), name_of_experts(experts, "ffn_up_exps")};
}

std::string gguf_fused_expert_name(const spec::TensorSpec& experts) {
  return is_gate_up(experts) ? name_of_experts(experts, "ffn_gate_up_exps") : std::string();
}

std::vector<std::string> gguf_single_expert_names(const spec::TensorSpec& experts) {
  const std::vector<const char*> matrices = is_gate_up(experts)
                                                ? std::vector<const char*>{"ffn_gate", "ffn_up"}
                                                : std::vector{"ffn_down"};
  std::vector<std::string> names;
  for (int64_t expert = 0; expert < experts.shape[0]; ++expert) {
    for (const char* matrix : matrices)
      names.push_back(fmt::format("blk.{}.{}.{}.weight", experts.layer, matrix, expert));
  }
  return names;
}

}  // namespace sftrun::weights
