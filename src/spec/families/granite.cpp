#include "../family.h"
#include "sftrun/core/error.h"

/// Granite 3: Llama with multipliers for embedding, attention scores, residual branches and logits.
namespace sftrun::spec {
namespace {

using nlohmann::json;

void read_granite(const JsonFields& config, ArchSpec& arch) {
  read_attention_bias(config, arch);
  arch.mlp_bias = config.get_bool("mlp_bias", false);
  arch.scales_embedding_noise = true;
  arch.embedding_scale = config.get_positive("embedding_multiplier", 1);
  arch.attention_scale = config.get_positive("attention_multiplier", 1);
  arch.residual_scale = config.get_positive("residual_multiplier", 1);
  arch.logit_scale = 1 / config.get_positive("logits_scaling", 1);
}

void write_granite(const ArchSpec& arch, json& config) {
  config["attention_bias"] = arch.qkv_bias;
  config["mlp_bias"] = arch.mlp_bias;
  config["embedding_multiplier"] = arch.embedding_scale;
  config["attention_multiplier"] = arch.attention_scale;
  config["residual_multiplier"] = arch.residual_scale;
  config["logits_scaling"] = 1 / arch.logit_scale;
}

void read_granite_gguf(const JsonFields& meta, ArchSpec& arch) {
  // llama.cpp uses this key to mark Granite models without RoPE.
  if (!meta.get_bool("rope.scaling.finetuned", true)) {
    throw DataError("a Granite model without position embeddings is not supported", meta.where(),
                    "supported: Granite 3 and models of the same architecture");
  }
  arch.embedding_scale = meta.get_positive("embedding_scale", 1);
  arch.scales_embedding_noise = true;
  arch.attention_scale = meta.get_positive("attention.scale", 0);
  arch.residual_scale = meta.get_positive("residual_scale", 1);
  arch.logit_scale = 1 / meta.get_positive("logit_scale", 1);
}

void write_granite_gguf(const ArchSpec& arch, GgufMetadataWriter& meta) {
  meta.set("embedding_scale", arch.embedding_scale);
  if (arch.attention_scale > 0) meta.set("attention.scale", arch.attention_scale);
  meta.set("residual_scale", arch.residual_scale);
  meta.set("logit_scale", 1 / arch.logit_scale);
}

}  // namespace

const Family kGranite = {
    .model_type = "granite",
    .model_class = "GraniteForCausalLM",
    .score_class = "-",
    .read = read_granite,
    .write = write_granite,
    .gguf = "granite",
    .gguf_interleaves = true,
    .read_gguf = read_granite_gguf,
    .write_gguf = write_granite_gguf,
};

}  // namespace sftrun::spec
