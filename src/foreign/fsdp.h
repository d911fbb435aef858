#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "offload.h"
#include "sftrun/core/strings.h"

/// Words of PyTorch's FSDP, which several tools use.
namespace sftrun::foreign {

constexpr std::string_view kFsdpUnits =
    "each layer is a unit that is gathered and released, and weights are divided while they are "
    "loaded";

/// FSDP 1 names the strategy; FSDP 2 says whether weights are released after the forward pass.
/// "": not known.
inline std::string_view strategy_of_fsdp(std::string word) {
  word = ascii_lower(std::move(word));
  constexpr auto kStrategies = std::to_array<WordPair>({{"full_shard", "fsdp"},
                                                        {"1", "fsdp"},
                                                        {"true", "fsdp"},
                                                        {"shard_grad_op", "zero2"},
                                                        {"2", "zero2"},
                                                        {"false", "zero2"},
                                                        {"no_shard", "ddp"},
                                                        {"3", "ddp"},
                                                        {"hybrid_shard", "hybrid"},
                                                        {"4", "hybrid"},
                                                        {"hybrid_shard_zero2", "hybrid"},
                                                        {"5", "hybrid"}});
  const auto* const found = std::find_if(kStrategies.begin(), kStrategies.end(),
                                         [&](const WordPair& pair) { return pair.theirs == word; });
  return found == kStrategies.end() ? std::string_view() : found->ours;
}

/// FSDP 2 leaves out the beginning.
constexpr auto kFsdpCheckpointing = std::to_array<std::string_view>(
    {"fsdp_config.fsdp_activation_checkpointing", "fsdp_config.activation_checkpointing"});

/// transformers reads fsdp_config only with `fsdp`; Axolotl also without.
inline bool has_fsdp(const Conversion& conversion) {
  if (conversion.tool() == Tool::kAxolotl) return true;
  const auto fsdp = conversion.find("fsdp");
  return fsdp && !is_off(fsdp->value);
}

/// The key that turns FSDP's own checkpointing on; "": it is off.
inline std::string_view fsdp_checkpointing_key(const Conversion& conversion) {
  for (const std::string_view name : kFsdpCheckpointing) {
    const auto key = conversion.find(name);
    if (key && !is_off(key->value) && has_fsdp(conversion)) return name;
  }
  return {};
}

inline void set_fsdp_checkpointing(Conversion& conversion, const SourceKey& key) {
  const bool is_on = parse_bool(key.value.text) != false;
  // Without FSDP's, the checkpointing of the model may be on.
  if (!is_on && conversion.tool() != Tool::kAccelerate) return;
  conversion.set(key, "train.gradient_checkpointing", key.value, /*is_firm=*/is_on);
}

inline void set_fsdp_checkpoint_format(Conversion& conversion, const SourceKey& key) {
  if (ascii_lower(key.value.text) == "full_state_dict")
    return conversion.set(key, "train.checkpoint_format", "whole");
  conversion.note_no_meaning(key, "each rank writes the weights that it trains and owns");
}

/// FSDP 2 leaves out the beginning.
constexpr auto kFsdpResharding = std::to_array<std::string_view>(
    {"fsdp_config.fsdp_reshard_after_forward", "fsdp_config.reshard_after_forward"});

inline bool names_fsdp_resharding(const Conversion& conversion) {
  return std::any_of(kFsdpResharding.begin(), kFsdpResharding.end(),
                     [&](std::string_view name) { return conversion.find(name).has_value(); });
}

/// transformers' list: [full_shard, auto_wrap, offload], or the words in a text.
inline void set_fsdp_words(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  std::vector<std::string> words;
  if (key.value.kind == Value::Kind::kScalar) words = split(key.value.text, ' ');
  for (const Value& item : key.value.items) words.push_back(item.text);
  for (std::string& word : words) {
    word = ascii_lower(std::string(trim(word)));
    if (word == "offload") {
      set_offload_of_all(conversion, key);
    } else if (word == "true" && names_fsdp_resharding(conversion)) {
      continue;  // fsdp_config names the strategy
    } else if (!word.empty() && word != "auto_wrap") {
      const std::string_view strategy = strategy_of_fsdp(word);
      conversion.set(key, "parallel.strategy", strategy.empty() ? word : strategy);
    }
  }
}

/// One key of transformers' fsdp_config.   @param leaf without the beginning fsdp_
inline void set_fsdp_setting(Conversion& conversion, const SourceKey& key, std::string_view leaf) {
  if (leaf == "reshard_after_forward") {
    const std::string_view strategy = strategy_of_fsdp(key.value.text);
    conversion.set(key, "parallel.strategy", strategy.empty() ? key.value.text : strategy);
  } else if (leaf == "activation_checkpointing") {
    set_fsdp_checkpointing(conversion, key);
  } else if (leaf == "state_dict_type") {
    set_fsdp_checkpoint_format(conversion, key);
  } else if (leaf == "offload_params" || leaf == "cpu_offload") {
    if (!is_off(key.value)) set_offload_of_all(conversion, key);
  } else {
    conversion.note_no_meaning(key, std::string(kFsdpUnits));
  }
}

/// transformers' fsdp_config: a map, or the path of a JSON file with one.
inline void set_fsdp_config(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (!has_fsdp(conversion)) return conversion.note_no_meaning(key, "only used with `fsdp`");
  if (key.value.kind != Value::Kind::kMap)
    return conversion.note_lost(key, "the file that it names is not read: write its keys here");
  constexpr std::string_view kBeginning = "fsdp_";
  for (const MapKey& inner : key.value.keys) {
    const auto setting = conversion.find(key.name + "." + inner.text);
    if (!setting) continue;
    std::string_view leaf = inner.text;
    if (leaf.starts_with(kBeginning)) leaf.remove_prefix(kBeginning.size());
    set_fsdp_setting(conversion, *setting, leaf);
  }
}

}  // namespace sftrun::foreign
