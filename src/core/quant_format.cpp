#include "sftrun/core/quant_format.h"

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun {
QuantLayout layout_of_method(std::string_view method, std::string_view format, bool in_8bit) {
  for (const QuantLayoutInfo& info : kQuantLayouts)
    if (info.is_described_by(method, format, in_8bit)) return info.layout;
  return QuantLayout::kNone;
}

const QuantFormatInfo& first_format_of(QuantLayout layout) {
  const auto* found = std::find_if(kQuantFormats.begin(), kQuantFormats.end(),
                                   [&](const auto& info) { return info.is_in(layout); });
  SFTRUN_CHECK(layout != QuantLayout::kNone && found != kQuantFormats.end());
  return *found;
}

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
