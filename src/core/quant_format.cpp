#include "sftrun/core/quant_format.h"

#include "sftrun/core/strings.h"

namespace sftrun {
const QuantFormatInfo* find_quant_format(std::string_view name) {
  for (const QuantFormatInfo& info : kQuantFormats)
    if (info.is_made && info.name == name) return &info;
  return nullptr;
}

std::string quant_descriptions(const std::vector<std::string>& names) {
  std::vector<std::string> lines;
  for (const std::string& name : names)
    lines.push_back(name + ": " + std::string(find_quant_format(name)->description));
  return join(lines, ". ");
}

}  // namespace sftrun
