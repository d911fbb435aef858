#include "gguf_names.h"

#include <array>
#include <string_view>
#include <utility>

#include "sftrun/core/error.h"

namespace sftrun::weights {
namespace {

constexpr std::string_view kLayers = "model.layers.";

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kOutside = {{
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
}};
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kInLayer = {{
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
}};

template <typename Table>
std::string_view look_up(const Table& table, std::string_view module) {
  for (const auto& [hf, gguf] : table) {
    if (hf == module) return gguf;
  }
  invariant_failed(__FILE__, __LINE__, fmt::format("`{}` has a GGUF name", module));
}

}  // namespace

std::string gguf_name(const std::string& hf_name) {
  const std::string_view name = hf_name;
  const size_t kind = name.rfind('.');
  SFTRUN_CHECK(kind != std::string_view::npos);
  const std::string_view module = name.substr(0, kind), suffix = name.substr(kind);
  if (!module.starts_with(kLayers)) return fmt::format("{}{}", look_up(kOutside, module), suffix);
  const size_t dot = module.find('.', kLayers.size());
  SFTRUN_CHECK(dot != std::string_view::npos);
  const std::string_view layer = module.substr(kLayers.size(), dot - kLayers.size());
  return fmt::format("blk.{}.{}{}", layer, look_up(kInLayer, module.substr(dot + 1)), suffix);
}

bool has_permuted_rows(const std::string& hf_name) {
  return hf_name.find(".self_attn.q_proj.") != std::string::npos ||
         hf_name.find(".self_attn.k_proj.") != std::string::npos;
}

}  // namespace sftrun::weights
