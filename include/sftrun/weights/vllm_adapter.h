#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/trained_names.h"

/// Adapters for vLLM (0.33: vllm/lora/lora_model.py, model_manager.py, lora_weights.py). It loads
/// PEFT's layout for linear layers, but for experts only in some families.
namespace sftrun::weights {

/// The layout in which vLLM's class of a family expects adapters of experts.
enum class VllmExperts {
  kTogether,  ///< as in PEFT, for both gate_up_proj and down_proj (gpt-oss, Qwen3.5-MoE)
  kEach,      ///< each matrix of each expert is a module, for all three matrices
};
VllmExperts vllm_experts(const spec::ArchSpec& arch);

/// Why vLLM cannot apply an adapter in any layout.
struct VllmRefusal {
  std::string what;              ///< "DoRA"
  bool may_serve_merged = true;  ///< false: vLLM does not read the merged model either
  std::string advice() const;
};
/// nullopt: vLLM can apply it, perhaps in another layout.
/// @param is_adapted for a module or an experts' tensor: "model.layers.0.self_attn.q_proj"
std::optional<VllmRefusal> vllm_refusal(const spec::LoraSpec& lora, bool has_whole_modules,
                                        const spec::ArchSpec& arch,
                                        const std::function<bool(const std::string&)>& is_adapted);
/// The smallest value of vLLM's --max-lora-rank (default 16) for an adapter; 0: there is none.
int64_t vllm_max_lora_rank(const spec::LoraSpec& lora);

/// How vLLM misreads an adapter in PEFT's layout.
struct VllmReading {
  bool is_silent = false;  ///< it loads the adapter without an error, but computes wrong results
  std::string what;        ///< "vLLM rejects …"
  std::string advice() const;
};
/// nullopt: vLLM computes the same as PEFT.
/// @param is_adapted for a module or an experts' tensor: "model.layers.0.self_attn.q_proj"
std::optional<VllmReading> vllm_reading(const spec::ArchSpec& arch,
                                        const std::function<bool(const std::string&)>& is_adapted);

/// Advice for using an adapter in PEFT's layout with vLLM.
struct VllmAdvice {
  bool is_warning = false;  ///< vLLM would compute wrong results without an error
  std::string text;
};
/// nullopt: vLLM computes the same as PEFT.   Parameters as of vllm_refusal.
std::optional<VllmAdvice> vllm_advice(const spec::LoraSpec& lora, bool has_whole_modules,
                                      const spec::ArchSpec& arch,
                                      const std::function<bool(const std::string&)>& is_adapted);

/// Writes an adapter that vLLM applies as PEFT applies the one in `from`: adapter_config.json,
/// adapter_model.safetensors in fp32, and the tokenizer and template files of `from`.
///     experts, each matrix: gate and up have the same A and a half of B each; if their ranks are
///       separate (older adapters), each has its own ranks. Names as in the model's files.
///     gate_up_proj or down_proj without an adapter: zeros
///     k_proj of layers that use their keys as values: copied to v_proj
/// @throws DataError as load_adapter; for fully trained modules, magnitudes, and an adapted
/// embedding or head
void write_vllm_adapter(const std::filesystem::path& from, const std::filesystem::path& to,
                        const spec::ArchSpec& arch);

}  // namespace sftrun::weights
