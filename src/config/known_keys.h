#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sftrun/config/binding.h"

/// Keys that are not fields: planned ones, keys of other trainers (foreign_keys.h), and misspelt
/// ones.
namespace sftrun::config {

/// A known key whose feature is not supported.
struct UnsupportedKey {
  std::string_view key;  ///< "train.generation_*" stands for all keys that begin so
  bool only_evaluation;  ///< changes only the evaluation, not the training: ignored with a warning
  std::string_view
      harmless;  ///< a value that has no effect, besides null, false and empty: accepted
  std::string_view instead;  ///< the fix; for only_evaluation, why the key is not needed
};
/// nullptr if `key` is not one of them. A key inside one of them counts as it.
const UnsupportedKey* find_unsupported_key(const std::string& key);

/// The key of the field that another spelling of it means: `train.early_stopping_patience` of
/// `train.early_stopping.patience`. Other keys are returned unchanged.
std::string main_key(const std::string& key);
/// Whether a map with this key holds such spellings.
bool has_main_keys(std::string_view key);

/// Whether `value` leaves the feature off.
bool is_harmless(const UnsupportedKey& later, const Value& value);

/// The fix for a key that is neither a field nor a section: the equivalent of a key of another
/// trainer, else "did you mean `train.learning_rate`?", else where all keys are listed.
std::string suggest_key(const std::string& key, const Value& value, const Binding& binding);
/// The full name of the field with the same last part or the nearest spelling, or "".
std::string nearest_key(const std::string& key, const Binding& binding);
/// The setting that a value in place of a section's keys means: `model.name` of `model: PATH`. "": none
std::string setting_of_section(std::string_view section);
/// `name`; of a section the name of its first field, because a section takes no value.
std::string field_named(const std::string& name, const Binding& binding);

}  // namespace sftrun::config
