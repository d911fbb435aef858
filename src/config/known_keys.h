#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "binding.h"

/// Keys that are no fields of this version: those that later versions bring, those of other
/// trainers (foreign_keys.h), and misspelt ones.
namespace sftrun::config {

/// A key of the interface whose feature this version does not have.
struct LaterKey {
  std::string_view key;  ///< "train.generation_*" stands for all keys that begin so
  bool only_evaluation;  ///< it changes how a run is evaluated, not what it learns: ignored with a
                         ///< warning
  std::string_view
      harmless;  ///< a value that asks for nothing, besides null, false and empty: accepted
  std::string_view instead;  ///< what to do now
};
/// nullptr if `key` is none of them. Keys inside one of them count as it.
const LaterKey* find_later_key(const std::string& key);

/// Whether `value` asks a feature for nothing.
bool is_harmless(const LaterKey& later, const Value& value);

/// The fix line for a key that is neither a field nor a section: what a key of another trainer is
/// here, else "did you mean `train.learning_rate`?", else where to look.
std::string suggest_key(const std::string& key, const Value& value, const Binding& binding);
/// The full name of the field with the same last part or the nearest spelling, or "".
std::string nearest_key(const std::string& key, const Binding& binding);

}  // namespace sftrun::config
