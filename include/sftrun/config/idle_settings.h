#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/run_config.h"

/// Settings that are valid and change nothing in a run, key by key: "train.beta has an effect only
/// with train.objective dpo".
namespace sftrun::config {

/// What is known of a run beside its configuration; nullopt: not yet.
struct RunFacts {
  std::optional<int> world_size;  ///< processes
  std::optional<bool> on_gpu;
};

/// When a setting has an effect.
enum class Effect {
  kAlways,   ///< in every run
  kByRules,  ///< not where a rule of this table names a reason
  kByModel,  ///< the model's files decide, and what reads them warns or refuses
};
/// nullopt: this table does not know the key.
std::optional<Effect> effect_of(const std::string& key);

/// Whether no rule of this table names a reason why the setting changes nothing, by the configuration
/// alone.
bool has_effect(std::string_view key, const RunConfig& run);

/// A setting that changes nothing, and a warning that says why and where it was set.
struct IdleSetting {
  std::string key;  ///< of settings with a common warning, the first
  std::string warning;
};

/// The settings that `loaded` sets to another value than the default, and that have no effect by
/// the configuration alone.
std::vector<IdleSetting> idle_settings(const LoadedConfig& loaded);

/// Those that have none in a run on known devices, without the ones of the function above.
/// @param run the configuration after `resolve`
std::vector<IdleSetting> idle_settings(const LoadedConfig& loaded, const RunConfig& run,
                                       const RunFacts& facts);

}  // namespace sftrun::config
