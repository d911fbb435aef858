#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "sftrun/config/base_record.h"
#include "sftrun/config/run_config.h"
#include "sftrun/model/decoder.h"
#include "sftrun/weights/checkpoint.h"

/// The format in which a run keeps its frozen base: from the configuration, or from what an adapter
/// records about its run.
namespace sftrun::model {

/// @param checkpoint the base; null: random weights
/// @throws ConfigError if tuning.quant keeps blocks that the base's files do not have
BaseForm base_form(const config::TuningConfig& tuning, const weights::Checkpoint* checkpoint);

/// The format of most of the base's matrices then: "nf4", "Q4_1", …; empty: the run's dtype.
std::string stored_base_form(const config::TuningConfig& tuning,
                             const weights::Checkpoint& checkpoint);

/// What an adapter records about the base it is trained with.
/// @param dtype compute dtype: "fp32"   @param fingerprint of the base's weights
/// @param has_tower whether the run loaded the image side of the model; else `skip_modules` has it
config::BaseRecord base_record(const config::RunConfig& config, const std::string& dtype,
                               const weights::Checkpoint& checkpoint,
                               const std::string& fingerprint, bool has_tower = false);

/// How the adapter's run kept `base`, if it quantised it when loading. nullopt: it kept the files'
/// format, the adapter was trained with another base or with PiSSA, or does not say.
std::optional<config::BaseRecord> quantised_by_run(const std::filesystem::path& adapter,
                                                   const weights::Checkpoint& base);

/// Warns if the adapter records its base, and `base` is neither that nor a copy of it.
void warn_of_another_base(const std::filesystem::path& adapter, const weights::Checkpoint& base);

}  // namespace sftrun::model
