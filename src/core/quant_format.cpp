#include "sftrun/core/quant_format.h"

namespace sftrun {
const QuantFormatInfo* find_quant_format(std::string_view name) {
  for (const QuantFormatInfo& info : kQuantFormats)
    if (info.is_made && info.name == name) return &info;
  return nullptr;
}

std::vector<std::string> quant_names() {
  std::vector<std::string> names;
  for (const QuantFormatInfo& info : kQuantFormats)
    if (info.is_made) names.emplace_back(info.name);
  return names;
}

}  // namespace sftrun
