#include "shape_math.h"
#include "sftrun/core/strings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sftrun::weights {

std::optional<int64_t> checked_numel(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return product;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return excerpt(fmt::format("[{}]", fmt::join(shape, ", ")));
}

}  // namespace sftrun::weights
