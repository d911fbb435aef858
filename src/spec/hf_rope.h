#pragma once

#include <nlohmann/json.hpp>

#include "family.h"

/// The RoPE keys of config.json, in the formats of transformers 4 and 5.
namespace sftrun::spec {

/// Fills `arch.ropes`, and the rope of each layer if the family has two.
void read_ropes(const JsonFields& config, const Family& family, ArchSpec& arch);
/// Writes keys that both versions read.
void write_ropes(const ArchSpec& arch, const Family& family, nlohmann::json& config);

}  // namespace sftrun::spec
