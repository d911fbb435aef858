#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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
  /// Of the experts' gate_up_proj, where it is not r and lora_alpha; 0: it is. PEFT gives it the
  /// ranks of gate and up together where an adapter (or its list of targets) named them apart.
  int64_t gate_up_r = 0;
  double gate_up_alpha = 0;
  bool use_rslora = false;
  std::vector<std::string> modules_to_save;
  std::string task_type = "CAUSAL_LM";

  /// `target_modules: "all-linear"`, which a hand-written file may hold, comes back as the one name
  /// "all-linear".
  /// @throws DataError naming what this program does not support (DoRA, other PEFT types, …).
  static AdapterConfig load(const std::filesystem::path& directory);
  nlohmann::json to_json() const;  ///< what PEFT's LoraConfig.from_pretrained reads
};

/// PEFT's tensor names: "base_model.model." + module + ".lora_A.weight".
std::string lora_a_name(const std::string& module);
std::string lora_b_name(const std::string& module);
/// Whether a target names experts' matrices or a router, as PEFT did when each was a module:
/// "w1", "experts.0.gate_proj", "gate".
bool names_single_experts(const std::string& target);
/// What PEFT calls the module of an experts' tensor ("…mlp.experts.down_proj"): it wraps the
/// experts once for each tensor that is adapted, the last around the first.
std::string peft_expert_module(const std::string& parameter, bool both_adapted);

}  // namespace sftrun::weights
