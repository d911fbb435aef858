#pragma once

#include <nlohmann/json.hpp>

#include "family.h"

/// The RoPE keys of config.json, in the words of transformers 4 and 5.
namespace sftrun::spec {

/// Fills `arch.ropes`, and which layer turns by which where the family has two.
void read_ropes(const JsonFields& config, const Family& family, ArchSpec& arch);
/// Keys that both read.
void write_ropes(const ArchSpec& arch, const Family& family, nlohmann::json& config);

}  // namespace sftrun::spec
