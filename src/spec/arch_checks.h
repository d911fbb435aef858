#pragma once

#include <string>

#include "sftrun/spec/arch_spec.h"

namespace sftrun::spec {

/// Largest size of one dimension: the product of two fits in 63 bits.
constexpr int64_t kMaxSize = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxLayers = 10'000;

/// Checks an ArchSpec's fields against each other, for all file formats. @throws DataError
void check_arch(const ArchSpec& arch, const std::string& where);

/// transformers' name of a type ("llama3"), and the inverse. @throws DataError listing the known
/// types
std::string name_of(RopeType type);
RopeType parse_rope_type(const std::string& name, const std::string& where);

}  // namespace sftrun::spec
