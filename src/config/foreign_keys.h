#pragma once

#include <span>
#include <string>
#include <string_view>

#include "value.h"

/// Keys of other trainers' configurations (transformers, TRL, PEFT, bitsandbytes, Axolotl,
/// LLaMA-Factory, torchtune, Unsloth, Accelerate), and what to write instead.
namespace sftrun::config {

struct ForeignKey {
  /// The last part of the key ("optim"), the whole key ("data.path"), or the beginning of many
  /// ("wandb_*").
  std::string_view name;
  /// The field here with the same meaning; empty: none.
  std::string_view field;
  /// The fix line of the error; empty: "use `field`", whose values are the same.
  std::string_view advice;
};

/// The fix, if it depends on the value.
struct ForeignValue {
  std::string_view name, value;
  std::string_view advice;
};

std::span<const ForeignKey> foreign_keys();
std::span<const ForeignValue> foreign_values();

/// Searches whole keys first, then last parts, then prefixes. nullptr: not in the table.
const ForeignKey* find_foreign_key(std::string_view key);
/// The fix line.
std::string advice_on(const ForeignKey& foreign, const Value& value);

}  // namespace sftrun::config
