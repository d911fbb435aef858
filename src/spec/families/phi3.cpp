#include "../arch_checks.h"
#include "../family.h"

/// Phi-3, 3.5 and 4: one matrix for q, k, v and one for gate and up, LongRoPE, and a part of each
/// head that does not turn (Phi-4-mini).
namespace sftrun::spec {
namespace {

using nlohmann::json;

void read_phi3(const JsonFields& config, ArchSpec& arch) {
  arch.fused_projections = true;
  set_windows(arch, config.get_int("sliding_window", 0, 1, kMostSize));
}

void write_phi3(const ArchSpec& arch, json& config) {
  config["sliding_window"] = window_of(arch) > 0 ? json(window_of(arch)) : json(nullptr);
  // Read from here, and not from the RoPE's own keys.
  const int64_t original = arch.ropes[0].original_max_position_embeddings;
  if (original > 0) config["original_max_position_embeddings"] = original;
}

}  // namespace

const Family kPhi3 = {
    .model_type = "phi3",
    .model_class = "Phi3ForCausalLM",
    .defaults = R"({"rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
                    "original_max_position_embeddings": 4096})",
    .partial_rotary = true,
    .read = read_phi3,
    .write = write_phi3,
};

}  // namespace sftrun::spec
