#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "sftrun/config/assignment.h"
#include "sftrun/config/load.h"

namespace sftrun::config {

/// Runs that name no file of another tool: those are tested with the module `foreign`.
inline constexpr ForeignFiles kNoForeignFiles{
    .require_own_run = [](const Value&, const std::filesystem::path&) {},
    .read_named =
        [](const AssignmentLayers& layers, const auto&, Problems&) {
          for (const char* key : {"parallel.accelerate", "parallel.deepspeed"})
            EXPECT_EQ(last_of(layers, key), nullptr) << key;
          return NamedFiles();
        }};
inline LoadedConfig load_config(const std::filesystem::path& yaml,
                                const std::vector<std::string>& overrides) {
  return load_config(yaml, overrides, kNoForeignFiles);
}
inline LoadedConfig config_from_overrides(const std::vector<std::string>& overrides) {
  return config_from_overrides(overrides, kNoForeignFiles);
}

}  // namespace sftrun::config
