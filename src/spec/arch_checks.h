#pragma once

#include <string>

#include "sftrun/spec/arch_spec.h"

namespace sftrun::spec {

/// Largest size of any one dimension: a product of two still fits 63 bits.
constexpr int64_t kMostSize = (int64_t{1} << 31) - 1;
constexpr int64_t kMostLayers = 10'000;

/// What must hold between the fields of an ArchSpec, whatever file it came from. @throws DataError
void check_arch(const ArchSpec& arch, const std::string& where);

/// transformers' word for a type ("llama3"), and back. @throws DataError naming those that are
/// known.
std::string name_of(RopeType type);
RopeType parse_rope_type(const std::string& name, const std::string& where);

}  // namespace sftrun::spec
