#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/trained_names.h"

/// Adapters as vLLM reads them (0.33: vllm/lora/lora_model.py, model_manager.py, lora_weights.py).
/// It takes PEFT's layout of linear layers as it is, that of experts of some families only.
namespace sftrun::weights {

/// How vLLM's class of a family wants the updates of its experts.
enum class VllmExperts {
  kTogether,  ///< as PEFT has them, of gate_up_proj and down_proj both (gpt-oss, Qwen3.5-MoE)
  kEach,      ///< each matrix of each expert as a module of its own, of all three matrices
};
VllmExperts vllm_experts(const spec::ArchSpec& arch);

/// Why vLLM takes an adapter in no layout.
struct VllmRefusal {
  std::string what;  ///< "magnitudes of DoRA"
  std::string advice() const;
};
/// nullopt: it takes it, as it is or written otherwise.
/// @param is_adapted of a module or an experts' tensor: "model.layers.0.self_attn.q_proj"
std::optional<VllmRefusal> vllm_refusal(const spec::LoraSizes& sizes, bool has_whole_modules,
                                        const spec::ArchSpec& arch,
                                        const std::function<bool(const std::string&)>& is_adapted);
/// The least --max-lora-rank of vLLM's (its default is 16) that takes an adapter; 0: none does.
int64_t vllm_max_lora_rank(const spec::LoraSizes& sizes);

/// What vLLM makes of an adapter in PEFT's layout.
struct VllmReading {
  bool is_silent = false;  ///< it loads the adapter, and computes something else
  std::string what;        ///< "vLLM refuses …"
  std::string advice() const;
};
/// nullopt: what PEFT computes.
/// @param is_adapted of a module or an experts' tensor: "model.layers.0.self_attn.q_proj"
std::optional<VllmReading> vllm_reading(const spec::ArchSpec& arch,
                                        const std::function<bool(const std::string&)>& is_adapted);

/// Writes an adapter that vLLM applies as PEFT applies the one in `from`: adapter_config.json,
/// adapter_model.safetensors in fp32, and the files of tokenizer and template that `from` carries.
///     experts, each: gate and up have the same A, and a half of B each; or the ranks of each where
///       they are apart, as of adapters that named them apart. Called as in the model's files.
///     what of gate_up_proj and down_proj is not adapted: zeros
///     k_proj of layers whose values are their keys: the same for v_proj
/// @throws DataError as load_adapter; of whole modules, magnitudes, and updates of embedding or
/// head
void write_vllm_adapter(const std::filesystem::path& from, const std::filesystem::path& to,
                        const spec::ArchSpec& arch);

}  // namespace sftrun::weights
