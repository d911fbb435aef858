#include "../arch_checks.h"
#include "../family.h"

/// Phi-3, 3.5 and 4: one matrix for q, k, v and one for gate and up; LongRoPE; partial rotation of
/// each head (Phi-4-mini).
namespace sftrun::spec {
namespace {

using nlohmann::json;

void phi3_traits(ArchSpec& arch) {
  arch.fused_projections = true;
}

void read_phi3(const JsonFields& config, ArchSpec& arch) {
  set_windows(arch, config.get_int("sliding_window", 0, 1, kMaxSize));
}

void write_phi3(const ArchSpec& arch, json& config) {
  write_window(arch, config);
  // transformers reads it from here, not from the RoPE keys.
  const int64_t original = arch.ropes[0].original_max_position_embeddings;
  if (original > 0) config["original_max_position_embeddings"] = original;
}

/// LongRoPE's factors are tensors: see `set_longrope_factors`.
void read_phi3_gguf(const JsonFields& meta, ArchSpec& arch) {
  set_windows(arch, meta.get_int("attention.sliding_window", 0, 0, kMaxSize));
  RopeSpec& rope = arch.ropes[0];
  rope.original_max_position_embeddings =
      meta.get_int("rope.scaling.original_context_length", 0, 0, kMaxSize);
  if (meta.has("rope.scaling.attn_factor"))
    rope.attention_factor = meta.require_positive("rope.scaling.attn_factor");
}

void write_phi3_gguf(const ArchSpec& arch, GgufMetadataWriter& meta) {
  meta.set("attention.sliding_window", window_of(arch));
  // llama.cpp requires it for every model of the family.
  const RopeSpec& rope = arch.ropes[0];
  const int64_t original = rope.original_max_position_embeddings;
  meta.set("rope.scaling.original_context_length",
           original > 0 ? original : arch.max_position_embeddings);
}

}  // namespace

const Family kPhi3 = {
    .model_type = "phi3",
    .model_class = "Phi3ForCausalLM",
    .defaults = R"({"rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
                    "original_max_position_embeddings": 4096})",
    .partial_rotary = true,
    .traits = phi3_traits,
    .read = read_phi3,
    .write = write_phi3,
    .gguf = "phi3",
    .read_gguf = read_phi3_gguf,
    .write_gguf = write_phi3_gguf,
    .gguf_ignores_windows = true,
};

}  // namespace sftrun::spec
