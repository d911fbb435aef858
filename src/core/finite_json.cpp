#include "sftrun/core/finite_json.h"

#include <fmt/format.h>

#include <cmath>

#include "sftrun/core/strings.h"

namespace sftrun {

std::optional<std::string> find_not_finite(const nlohmann::ordered_json& value,
                                           const std::string& name) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return name;
  if (!value.is_structured()) return std::nullopt;
  size_t index = 0;
  for (const auto& [key, item] : value.items()) {
    if (item.is_primitive() && !item.is_number_float()) {
      ++index;
      continue;
    }
    const std::string place = value.is_array() ? fmt::format("{}[{}]", name, index)
                              : name.empty()   ? excerpt(key)
                                               : fmt::format("{}.{}", name, excerpt(key));
    if (auto found = find_not_finite(item, place)) return found;
    ++index;
  }
  return std::nullopt;
}

}  // namespace sftrun
