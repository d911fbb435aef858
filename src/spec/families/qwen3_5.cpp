#include "../arch_checks.h"
#include "../family.h"
#include "sftrun/core/error.h"

/// Qwen 3.5: gated delta nets in three layers of four, gated attention in the fourth. Its mixtures
/// of experts have a shared expert that is applied to every token.
namespace sftrun::spec {
namespace {

using nlohmann::json;

constexpr const char* kLinear = "linear_attention";
constexpr const char* kFullLayer = "full_attention";

void qwen3_5_traits(ArchSpec& arch) {
  arch.norm_adds_one = true;
  arch.qk_norm = QkNorm::kPerHead;
  arch.attention_gate = true;
}

void set_mixer(ArchSpec& arch, int64_t layer, bool is_delta) {
  arch.layers[static_cast<size_t>(layer)].mixer = is_delta ? Mixer::kDeltaNet : Mixer::kAttention;
}

void read_mixers(const JsonFields& config, ArchSpec& arch) {
  const int64_t interval = config.get_int("full_attention_interval", 4, 1, kMaxLayers);
  const json* types = find_layer_types(config, arch);
  for (int64_t i = 0; i < arch.num_layers; ++i) {
    set_mixer(arch, i, (i + 1) % interval != 0);
    if (!types) continue;
    const json& type = (*types)[static_cast<size_t>(i)];
    if (type != kLinear && type != kFullLayer)
      config.fail("layer_types", R"("full_attention" or "linear_attention" for each layer)");
    set_mixer(arch, i, type == kLinear);
  }
}

void check_delta_net(const DeltaNetSpec& delta, const std::string& where) {
  if (delta.num_value_heads % delta.num_key_heads == 0) return;
  throw DataError(fmt::format("{} value heads are not a multiple of {} key heads",
                              delta.num_value_heads, delta.num_key_heads),
                  where);
}

void read_qwen3_5(const JsonFields& config, ArchSpec& arch) {
  const auto size = [&](const char* key) { return config.require_int(key, 1, kMaxSize); };
  arch.delta_net = {.num_key_heads = size("linear_num_key_heads"),
                    .num_value_heads = size("linear_num_value_heads"),
                    .key_dim = size("linear_key_head_dim"),
                    .value_dim = size("linear_value_head_dim"),
                    .conv_kernel = size("linear_conv_kernel_dim")};
  check_delta_net(arch.delta_net, config.where());
  read_attention_bias(config, arch);
  read_mixers(config, arch);
}

void write_qwen3_5(const ArchSpec& arch, json& config) {
  config["linear_num_key_heads"] = arch.delta_net.num_key_heads;
  config["linear_num_value_heads"] = arch.delta_net.num_value_heads;
  config["linear_key_head_dim"] = arch.delta_net.key_dim;
  config["linear_value_head_dim"] = arch.delta_net.value_dim;
  config["linear_conv_kernel_dim"] = arch.delta_net.conv_kernel;
  config["attention_bias"] = arch.qkv_bias;
  config["layer_types"] = json::array();
  for (const LayerSpec& layer : arch.layers)
    config["layer_types"].push_back(layer.mixer == Mixer::kDeltaNet ? kLinear : kFullLayer);
}

void read_qwen3_5_moe(const JsonFields& config, ArchSpec& arch) {
  read_qwen3_5(config, arch);
  read_mixture(config, arch);
  arch.mixture.intermediate_size = config.require_int("moe_intermediate_size", 1, kMaxSize);
  arch.mixture.shared_size = config.require_int("shared_expert_intermediate_size", 1, kMaxSize);
  make_every_layer_sparse(arch);
}

void write_qwen3_5_moe(const ArchSpec& arch, json& config) {
  write_qwen3_5(arch, config);
  write_mixture(arch, config);
  config["num_experts"] = arch.mixture.num_experts;  // the class's own name
  config["moe_intermediate_size"] = arch.mixture.intermediate_size;
  config["shared_expert_intermediate_size"] = arch.mixture.shared_size;
}

/// If both are present the list, which newer files have, takes precedence over the interval, as in
/// llama.cpp.
void read_mixers_gguf(const JsonFields& meta, ArchSpec& arch) {
  const char* list = "attention.recurrent_layers";
  const int64_t interval = meta.get_int("full_attention_interval", 4, 1, kMaxLayers);
  const std::vector<bool> recurrent =
      meta.has(list) ? read_flags_gguf(meta, list, arch) : std::vector<bool>();
  for (int64_t i = 0; i < arch.num_layers; ++i) {
    const bool is_delta =
        recurrent.empty() ? (i + 1) % interval != 0 : recurrent[static_cast<size_t>(i)];
    set_mixer(arch, i, is_delta);
  }
}

void read_qwen3_5_gguf(const JsonFields& meta, ArchSpec& arch) {
  const auto size = [&](const char* key) { return meta.require_int(key, 1, kMaxSize); };
  arch.delta_net = {.num_key_heads = size("ssm.group_count"),
                    .num_value_heads = size("ssm.time_step_rank"),
                    .key_dim = size("ssm.state_size"),
                    .conv_kernel = size("ssm.conv_kernel")};
  arch.delta_net.value_dim = size("ssm.inner_size") / arch.delta_net.num_value_heads;
  check_delta_net(arch.delta_net, meta.where());
  read_mixers_gguf(meta, arch);
}

void read_qwen3_5_moe_gguf(const JsonFields& meta, ArchSpec& arch) {
  read_qwen3_5_gguf(meta, arch);
  read_expert_counts(meta, arch);
  arch.mixture.intermediate_size = meta.require_int("expert_feed_forward_length", 1, kMaxSize);
  arch.mixture.shared_size = meta.require_int("expert_shared_feed_forward_length", 1, kMaxSize);
}

/// M-RoPE sections: how many rotated pairs use the time, height and width position. For text all
/// three positions are equal, so any sections give the same result where the model has none.
json parts_of_positions(const ArchSpec& arch) {
  const std::vector<int64_t>& sections = arch.ropes[0].sections;
  if (sections.size() == 3) return {sections[0], sections[1], sections[2], 0};
  const int64_t pairs = arch.ropes[0].rotary_dim / 2;
  return {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0};
}

void write_qwen3_5_gguf(const ArchSpec& arch, GgufMetadataWriter& meta) {
  const DeltaNetSpec& delta = arch.delta_net;
  meta.set("ssm.conv_kernel", delta.conv_kernel);
  meta.set("ssm.state_size", delta.key_dim);
  meta.set("ssm.group_count", delta.num_key_heads);
  meta.set("ssm.time_step_rank", delta.num_value_heads);
  meta.set("ssm.inner_size", delta.values());
  meta.set("rope.dimension_sections", parts_of_positions(arch));
  json recurrent = json::array();
  int64_t interval = 0;  // for readers without the list: first full-attention layer, from 1
  for (const LayerSpec& layer : arch.layers) {
    recurrent.push_back(layer.mixer == Mixer::kDeltaNet);
    if (interval == 0 && layer.mixer == Mixer::kAttention)
      interval = static_cast<int64_t>(recurrent.size());
  }
  if (interval > 0) meta.set("full_attention_interval", interval);
  meta.set("attention.recurrent_layers", recurrent);
  if (arch.mixture.num_experts == 0) return;
  meta.set("expert_feed_forward_length", arch.mixture.intermediate_size);
  meta.set("expert_shared_feed_forward_length", arch.mixture.shared_size);
}

}  // namespace

const Family kQwen3_5 = {
    .model_type = "qwen3_5_text",
    .model_class = "Qwen3_5ForCausalLM",
    .score_class = "Qwen3_5TextForSequenceClassification",
    .defaults = R"({"vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
                    "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4,
                    "head_dim": 256, "max_position_embeddings": 32768,
                    "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4,
                    "linear_key_head_dim": 128, "linear_value_head_dim": 128,
                    "linear_num_key_heads": 16, "linear_num_value_heads": 32})",
    .partial_rotary = true,
    .traits = qwen3_5_traits,
    .read = read_qwen3_5,
    .write = write_qwen3_5,
    .gguf = "qwen35",
    .gguf_feed_forward_norm = "post_attention_norm",
    .read_gguf = read_qwen3_5_gguf,
    .write_gguf = write_qwen3_5_gguf,
};

const Family kQwen3_5Moe = {
    .model_type = "qwen3_5_moe_text",
    .model_class = "Qwen3_5MoeForCausalLM",
    .score_class = "-",
    .defaults = R"({"vocab_size": 248320, "hidden_size": 2048, "intermediate_size": 2048,
                    "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2,
                    "head_dim": 256, "max_position_embeddings": 32768,
                    "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4,
                    "linear_key_head_dim": 128, "linear_value_head_dim": 128,
                    "linear_num_key_heads": 16, "linear_num_value_heads": 32,
                    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
                    "num_experts_per_tok": 8, "num_experts": 256})",
    .is_mixture = true,
    .partial_rotary = true,
    .traits = qwen3_5_traits,
    .read = read_qwen3_5_moe,
    .write = write_qwen3_5_moe,
    .gguf = "qwen35moe",
    .gguf_feed_forward_norm = "post_attention_norm",
    .read_gguf = read_qwen3_5_moe_gguf,
    .write_gguf = write_qwen3_5_gguf,
};

}  // namespace sftrun::spec
