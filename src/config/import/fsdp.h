#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "import/offload.h"
#include "sftrun/core/strings.h"

/// Words of PyTorch's FSDP, which several tools use.
namespace sftrun::config::importing {

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

inline void set_fsdp_checkpointing(Reading& reading, const SourceKey& key) {
  const bool is_on = parse_bool(key.value.text) != false;
  // Without FSDP's, the checkpointing of the model may be on.
  if (!is_on && reading.tool() != ForeignTool::kAccelerate) return;
  reading.set(key, "train.gradient_checkpointing", key.value, /*is_firm=*/is_on);
}

inline void set_fsdp_checkpoint_format(Reading& reading, const SourceKey& key) {
  if (ascii_lower(key.value.text) == "full_state_dict")
    return reading.set(key, "train.checkpoint_format", "whole");
  reading.note_no_meaning(key, "each rank writes the weights that it trains and owns");
}

/// transformers' list: [full_shard, auto_wrap, offload], or the words in a text.
inline void set_fsdp_words(Reading& reading, const SourceKey& key) {
  if (is_off(key.value)) return;
  std::vector<std::string> words;
  if (key.value.kind == Value::Kind::kScalar) words = split(key.value.text, ' ');
  for (const Value& item : key.value.items) words.push_back(item.text);
  for (std::string& word : words) {
    word = ascii_lower(std::string(trim(word)));
    if (word == "offload") {
      set_offload_of_all(reading, key);
    } else if (!word.empty() && word != "auto_wrap") {
      const std::string_view strategy = strategy_of_fsdp(word);
      reading.set(key, "parallel.strategy", strategy.empty() ? word : strategy);
    }
  }
}

}  // namespace sftrun::config::importing
