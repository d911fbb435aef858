#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// How the settings of a run differ from those that its checkpoint was written with. A dry run and
/// the engine ask the same function.
namespace sftrun::config {

/// "key was 1, is now 2" of each key of two objects that differs.
std::vector<std::string> key_differences(const nlohmann::ordered_json& was,
                                         const nlohmann::ordered_json& is);

/// The same of `identity_settings`, with the order of patterns. A setting that the checkpoint does
/// not name had its default.   @param may_change_length whether epochs and steps may differ
std::vector<std::string> setting_differences(nlohmann::ordered_json was, nlohmann::ordered_json is,
                                             bool may_change_length);

/// What to do about them.
std::string restore_settings(const std::vector<std::string>& differences);

/// What is left, if a run shall not be resumed.
inline constexpr const char* kStartNewRun =
    "to start a new run choose another output.dir, or --overwrite moves this run aside";

}  // namespace sftrun::config
