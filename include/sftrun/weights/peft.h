#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/safetensors.h"

/// PEFT's adapter layout: adapter_config.json and adapter_model.safetensors.
namespace sftrun::weights {

struct AdapterConfig {
  std::string base_model_name_or_path;
  std::string revision;  ///< of a base on a hub; empty: none is named
  int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;
  std::vector<std::string> target_modules;  ///< module name endings ("q_proj"), or one regular
                                            ///< expression when is_pattern
  bool target_is_pattern = false;
  std::vector<std::string> target_parameters;  ///< of experts: endings of names
  /// Of single updates, in the file's order. PEFT itself gives the experts' gate_up_proj the ranks
  /// of gate and up together where an adapter (or its list of targets) named them apart.
  spec::NamePattern rank_pattern, alpha_pattern;
  bool use_rslora = false;
  bool use_dora = false;
  /// `init_lora_weights: pissa`: PEFT takes the principal part out of the base when it loads such.
  /// Not what is written here: see model::adapter_tensors.
  bool pissa = false;
  std::vector<std::string> modules_to_save;
  /// Tokens whose rows were trained alone, by the ending of the module's name
  /// (`trainable_token_indices`; a list is the embedding's).
  std::map<std::string, std::vector<int64_t>> trainable_tokens;
  bool ensure_weight_tying = false;  ///< what is trained of a tied embedding is the head's, too
  std::string task_type = "CAUSAL_LM";
  /// Of what is written: sftrun_base.json, beside what PEFT reads. Null: none.
  nlohmann::ordered_json held_base = nullptr;

  /// `target_modules: "all-linear"`, which a hand-written file may hold, comes back as the one name
  /// "all-linear".
  /// @throws DataError naming what this program does not support (DoRA, other PEFT types, …).
  static AdapterConfig load(const std::filesystem::path& directory);
  nlohmann::ordered_json to_json() const;  ///< what PEFT's LoraConfig.from_pretrained reads

  spec::LoraSizes sizes() const {
    return {r, lora_alpha, use_rslora, rank_pattern, alpha_pattern, use_dora};
  }
};

/// PEFT's tensor names: "base_model.model." + module + ".lora_A.weight".
std::string lora_a_name(const std::string& module);
std::string lora_b_name(const std::string& module);
struct LoraNames {
  std::string a, b;
};
LoraNames lora_names(const std::string& module);
LoraNames embedding_lora_names(const std::string& module);  ///< "….lora_embedding_A"
std::string magnitude_name(const std::string& module);      ///< of DoRA
/// Of a tensor of a module that was trained whole: "base_model.model.lm_head.weight".
std::string saved_name(const std::string& tensor);
std::string saved_tensor(
    const std::string& name);  ///< the inverse; updates' names give no tensor's
/// Whether a target names experts' matrices or a router, as PEFT did when each was a module:
/// "w1", "experts.0.gate_proj", "gate".
bool names_single_experts(const std::string& target);
/// What PEFT calls the module of an experts' tensor ("…mlp.experts.down_proj"): it wraps the
/// experts once for each tensor that is adapted, the last around the first.
std::string peft_expert_module(const std::string& parameter, bool both_adapted);

}  // namespace sftrun::weights
