#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/spec/lora_spec.h"
#include "sftrun/weights/safetensors.h"

/// PEFT's adapter layout: adapter_config.json and adapter_model.safetensors.
namespace sftrun::weights {

struct AdapterConfig {
  std::string base_model_name_or_path;
  std::string revision;  ///< revision of a base on a hub; empty: none
  /// If an adapter's tensors or targets name gate and up separately, PEFT gives gate_up_proj the
  /// ranks of both together. `lora.pissa` (`init_lora_weights: pissa`): PEFT subtracts the
  /// principal part from the base when it loads the adapter. Exported adapters do not need this:
  /// see model::adapter_tensors.
  spec::LoraSpec lora;
  /// Tokens whose rows alone were trained, by the ending of the module's name
  /// (`trainable_token_indices`; a plain list is for the embedding).
  std::map<std::string, std::vector<int64_t>> trainable_tokens;
  /// Modules that `target_modules` names and that have no adapter (`exclude_modules`,
  /// `layers_to_transform` with `layers_pattern`). An adapter's tensors say the same.
  struct LeftOut {
    std::vector<std::string> names = {};  ///< endings
    std::optional<PythonRegex> pattern = {};
    std::vector<int64_t> layers = {};  ///< if not empty: all layers but these
    /// Match a name up to the layer's number; empty: any word is before it
    std::vector<PythonRegex> before_layer = {};
    std::vector<std::string> whole_names = {};  ///< targets that `layers` does not concern

    bool is_empty() const { return names.empty() && !pattern && layers.empty(); }
    bool covers(const std::string& module) const;
  };
  LeftOut left_out;
  /// Targeted modules for which the file has no tensors: `load_adapter_config` takes them from the
  /// targets.
  std::vector<std::string> without_tensors;
  /// A trained embedding is also the trained head if they are tied
  bool ensure_weight_tying = false;
  std::string task_type = "CAUSAL_LM";
  /// Content of sftrun_base.json, which is written next to PEFT's files. null: not written.
  nlohmann::ordered_json base_record = nullptr;

  /// `target_modules: "all-linear"`, which a hand-written file may contain, is returned as a single
  /// name.
  /// @throws DataError naming a setting that is not supported (other PEFT types, …)
  static AdapterConfig load(const std::filesystem::path& directory);
  nlohmann::ordered_json to_json() const;  ///< what PEFT's LoraConfig.from_pretrained reads
};

/// PEFT's tensor names: "base_model.model." + module + ".lora_A.weight".
std::string lora_a_name(const std::string& module);
std::string lora_b_name(const std::string& module);
struct LoraNames {
  std::string a, b;
};
LoraNames lora_names(const std::string& module);
LoraNames embedding_lora_names(const std::string& module);  ///< "….lora_embedding_A"
std::string magnitude_name(const std::string& module);      ///< for DoRA
/// The name of a tensor in a fully trained module: "base_model.model.lm_head.weight".
std::string saved_name(const std::string& tensor);
std::string saved_tensor(
    const std::string& name);  ///< the inverse; empty for the names of an adapter's tensors
/// Whether a target names experts' matrices or a router like older PEFT versions, in which each was
/// a module: "w1", "experts.0.gate_proj", "gate".
bool names_single_experts(const std::string& target);
/// PEFT's module name for an experts' tensor ("…mlp.experts.down_proj"). PEFT wraps the experts
/// module once per adapted tensor; the wrapper added last is the outermost.
std::string peft_expert_module(const std::string& parameter, bool both_adapted);

}  // namespace sftrun::weights
