#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sftrun::weights {

/// The product of the sizes; nullopt if one is negative or the product does not fit in 63 bits.
std::optional<int64_t> checked_numel(const std::vector<int64_t>& shape);
/// "[32, 24]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace sftrun::weights
